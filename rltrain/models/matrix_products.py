"""Matrix products of float32, by whichever library of torch's is the fast one on this CPU.

Torch sends them to MKL, which off Intel's CPUs uses half of AVX-512; oneDNN, the library for convolutions and
bfloat16, does not care who made the CPU. x W^T + b for 256 rows of 256 with 256 outputs takes 147 us instead of 303
(222 GFLOP/s, one thread of an AMD EPYC of the fifth generation, December 2026). A call costs 10 us more, so that MKL
keeps the small ones. Either way a row's result does not depend on the rows beside it more than it did before;
`inference/torch_backend.py` tries that.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

_WIDE_ELEMENTS = 2**15
"""Elements of a layer's weight from which on its results come from oneDNN, however many rows there are."""

_LONG_PRODUCT = 2**20
"""Multiplications from which on a gradient comes from oneDNN."""

_CPU_INFO = Path("/proc/cpuinfo")
_IS_INTEL = _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text()
_HAS_ONEDNN = not _IS_INTEL and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute x W^T + b, [B, m] for [B, n], [m, n] and [m]."""
    return _onednn(x, weight, bias) if _is_wide(x, weight) else torch.addmm(bias, x, weight.t())


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute max(x W^T + b, 0); as `linear`."""
    if _is_wide(x, weight):
        return _onednn(x, weight, bias, "relu")
    return torch.addmm(bias, x, weight.t()).relu_()


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, [B, n] for [B, m] and [m, n]; for gradients, whose last bits may depend on the number of rows."""
    return _onednn(a, b.t(), None) if _is_long(a, b) else torch.mm(a, b)


def _is_long(a: Tensor, b: Tensor) -> bool:
    return a.numel() * b.shape[1] >= _LONG_PRODUCT and _fits(a)


def _is_wide(x: Tensor, weight: Tensor) -> bool:
    return weight.numel() >= _WIDE_ELEMENTS and _fits(x)


def _fits(x: Tensor) -> bool:
    return _HAS_ONEDNN and x.is_cpu and x.dtype == torch.float32 and len(x) > 0


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")
    return result
