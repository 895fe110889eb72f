"""What an update has from the host and what it counts, without waiting for the device. For algos and replay.

A copy from ordinary memory to a CUDA device, and everything whose shape depends on values there, makes the host wait
until all that was launched before has run: the device then has nothing to do until the host has launched more.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return a small array on a device; on the CPU a view, elsewhere a copy through pinned memory."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # torch keeps the pinned copy until it has been read


def valid_rows(valid: Tensor, num_rows: int | None = None) -> Tensor:
    """Return the numbers of the rows that are set, ascending, int64 [R].

    Args:
        valid: bool [M].
        num_rows: R, where it is known on the host; None counts here, which waits for the device.
    """
    if num_rows is None:
        return valid.nonzero().squeeze(1)
    numbers = torch.arange(len(valid), device=valid.device)
    place = (valid.cumsum(0) - 1).masked_fill_(~valid, num_rows)  # the others all go to one place behind the end
    return numbers.new_empty(num_rows + 1).scatter_(0, place, numbers)[:num_rows]
