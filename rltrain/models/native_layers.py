"""Fully connected layers in C: float32 on a CPU, where operations of torch's cost more than what they compute.

All layers of a stack in one call (`native/dense.c`), without Python's lock and with torch's number of threads. Forward
and backward of 8,192 rows through 4-64-64-2 with tanh take 1.5 ms instead of 6.1, of 64 rows 19 us instead of 250; of
8,192 rows through 256-512-512-8 with ReLU 83 ms instead of 110 (one thread of an AMD EPYC of the fifth generation,
December 2026, beside torch's own operations as `models/mlp.py` uses them). From a million weights on, torch's are the
faster ones.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from rltrain.native import ffi, lib

LARGEST_LAYER = 2**18
"""Weights of a layer: with more, oneDNN is as fast for many rows and faster for few. 0 leaves all layers, and
convolutions, to torch."""

_MOST_INPUTS = 4096
"""Of the first layer: each block of rows has that much memory."""

WIDEST_VECTORS = 16
"""Floats of the widest vectors to use, where the CPU has them. For tests: 8 is AVX2, 4 what every CPU has."""

_ACTIVATIONS = {None: 0, "tanh": 1, "relu": 2, "elu": 3, "silu": 4}


def fits(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether these layers are for C: inputs [B, n], weights [m, n] of each layer."""
    return (
        x.is_cpu and x.dtype == torch.float32 and x.dim() == 2
        and x.shape[1] == weights[0].shape[1] <= _MOST_INPUTS  # torch says what is wrong with others
        and all(w.is_cpu and w.dtype == torch.float32 and w.numel() <= LARGEST_LAYER for w in weights)
    )  # fmt: skip


def forward(
    x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], num_activations: int, activation: str, is_kept: bool
) -> tuple[Tensor, list[Tensor]]:
    """Apply layers, the first `num_activations` of them with `activation`.

    Args:
        x: [B, n], float32.
        layers: (weight [m, n], bias [m]), float32, of each.
        num_activations: as many as layers, or fewer.
        activation: `tanh`, `relu`, `elu` or `silu`.
        is_kept: whether `backward` will need what it is handed.

    Returns:
        The last layer's result [B, m], whose rows do not depend on each other, and what `backward` needs: the results
        of all layers but the last, then for silu the sums of those with an activation; rows padded to whole cache
        lines.
    """
    x, num_rows = _rows(x), len(x)
    last = len(layers) - 1
    padded = [x.new_empty(num_rows, lib.rl_dense_pitch(len(bias))) for _, bias in layers[:last]] if is_kept else []
    sums = []
    if is_kept and activation == "silu":
        sums = [x.new_empty(num_rows, lib.rl_dense_pitch(len(bias))) for _, bias in layers[:num_activations]]
    result = x.new_empty(num_rows, len(layers[-1][1]))
    layers = [(weight.contiguous(), bias.contiguous()) for weight, bias in layers]
    fields = array("q")
    for i, (weight, bias) in enumerate(layers):
        to = result if i == last else padded[i] if is_kept else None
        fields.extend(_layer(weight, num_activations > i, activation, bias, to, sums[i] if i < len(sums) else None))
    _call(lib.rl_dense_forward, fields, x)
    return result, [*padded, *sums]


def backward(
    x: Tensor, weights: Sequence[Tensor], num_activations: int, activation: str, result: Tensor, kept: Sequence[Tensor],
    output_gradient: Tensor, is_input_wanted: bool, are_parameters_wanted: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradients of what `forward` computed: the input's, and (weight, bias, weight, ...) or as many None.

    Args:
        x: as there.
        weights: of each layer.
        num_activations: as there.
        activation: as there.
        result: what it returned first.
        kept: what it returned then.
        output_gradient: [B, m].
        is_input_wanted: else None for it.
        are_parameters_wanted: else None for each.
    """
    x, last = _rows(x), len(weights) - 1
    weights = [weight.contiguous() for weight in weights]
    results, sums = [*kept[:last], result], kept[last:]
    gradients: list[Tensor | None] = []
    fields = array("q")
    for i, weight in enumerate(weights):
        wanted = (torch.empty_like(weight), weight.new_empty(len(weight))) if are_parameters_wanted else (None, None)
        gradients += wanted
        of_sum = sums[i] if i < len(sums) else None
        fields.extend(_layer(weight, num_activations > i, activation, None, results[i], of_sum, *wanted))
    output_gradient = output_gradient.contiguous()
    input_gradient = x.new_empty(x.shape) if is_input_wanted else None
    to = ffi.NULL if input_gradient is None else ffi.cast("float *", input_gradient.data_ptr())
    _call(lib.rl_dense_backward, fields, x, ffi.cast("float *", output_gradient.data_ptr()), to)
    return input_gradient, gradients


def _rows(x: Tensor) -> Tensor:
    """Rows may lie apart, but not overlap, nor their elements lie apart."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _layer(weight: Tensor, is_activated: bool, activation: str, *addressed: Tensor | None) -> list[int]:
    """Return the fields of an `rl_layer`: `addressed` from the bias on."""
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (weight, *addressed)]
    outputs, inputs = weight.shape
    kind = _ACTIVATIONS[activation if is_activated else None]
    return [inputs, outputs, kind, *addresses, *[0] * (6 - len(addresses))]


def _call(function, fields: array, x: Tensor, *others) -> None:
    num_layers = len(fields) // 9
    layers = ffi.cast("rl_layer *", ffi.from_buffer(fields))
    rows = ffi.cast("float *", x.data_ptr())
    status = function(
        layers, num_layers, rows, x.stride(0), len(x), *others, torch.get_num_threads(), WIDEST_VECTORS
    )
    if status != 0:
        raise MemoryError(f"no memory for {num_layers} layers of {len(x)} rows")
