"""Configuration: what can be set (`schema`, `algorithms`) and how it is read (`load`).

Imports neither torch nor gymnasium.
"""
