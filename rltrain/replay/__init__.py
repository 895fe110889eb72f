"""Replay: transitions that are learned from again and again, and which of them is drawn how often."""
