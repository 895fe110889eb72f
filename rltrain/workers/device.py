"""How a process uses torch: its device, its threads and memory, and which kernels may run.

Owns: the process's current CUDA device, its number of torch threads, its allocator's settings and its choice of cuDNN
kernels. Called by the learner and the inference server at boot.
"""

from __future__ import annotations

import torch

from rltrain import native
from rltrain.errors import ConfigError


def take_cores(num_threads: int) -> None:
    """Compute with this many torch threads, and keep freed memory for the next update."""
    torch.set_num_threads(num_threads)
    native.keep_memory()


def take_device(name: str, option: str) -> torch.device:
    """Return the device that an option names, and make it the calling thread's current one if it is a CUDA device.

    Pinned memory and whatever else names no device would else go to the first one, with a context of its own there.
    """
    device = resolve_device(name, option)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def resolve_device(name: str, option: str = "learner.device") -> torch.device:
    """Return the device behind `auto`, `cpu`, `cuda` or `cuda:N`.

    Args:
        name: the value.
        option: path of the option, for the message.

    Raises:
        ConfigError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number:
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and (not number or number.isdigit()) and int(number or 0) < count:
        return torch.device(f"cuda:{int(number or 0)}")
    there = f"cpu, {', '.join(f'cuda:{i}' for i in range(count))}" if count else "cpu (no CUDA device is visible)"
    raise ConfigError(f"{option} = {name!r} is not on this machine. Accepted here: auto, {there}.")


def use_reproducible_kernels() -> None:
    """Let cuDNN choose only among kernels that give the same bits each time; the lockstep schedules promise that."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
