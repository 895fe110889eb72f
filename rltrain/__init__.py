"""A workstation trainer for reinforcement learning that keeps the accelerator full and says why when it is not."""

__version__ = "0.1.0"
