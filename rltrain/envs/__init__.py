"""Environments: building, wrapping, and the boundary between their spaces and the slab."""
