"""Arithmetic of forward passes: option `learner.precision`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def forward_precision(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which networks run; weights, losses and targets stay float32 outside it.

    Args:
        device: where the network is.
        precision: `float32` or `bfloat16`.
    """
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)
