"""One optimiser step over flat parameters: gradients, their norm, the step, or none where they are not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rltrain.algos.adam import FlatAdam
from rltrain.algos.flat_parameters import FlatParameters


def step_down(
    flat: FlatParameters, optimizer: FlatAdam, max_grad_norm: float | None, loss: Tensor,
    backward: Callable[[], None], learning_rate: float,
) -> tuple[Tensor, Tensor]:
    """Take one step down a gradient, with its norm limited; all on the device.

    Args:
        flat: the parameters; changed in place.
        optimizer: of them.
        max_grad_norm: limit of the gradient's global L2 norm, or None.
        loss: scalar, only looked at for being finite.
        backward: adds the loss's gradient to the parameters'; see `through`.
        learning_rate: step size.

    Returns:
        (the gradient's norm before it was limited, 1 if loss or gradient were not finite and nothing was changed, else
        0), float32 scalars.
    """
    flat.grad.zero_()
    backward()
    norm: Tensor = torch.linalg.vector_norm(flat.grad)
    total = norm + loss
    skip = (total - total).ne(0).float()  # inf - inf and NaN - NaN are NaN, which differs from 0
    scale = None if max_grad_norm is None else (norm / max_grad_norm).clamp_(min=1)
    optimizer.step(flat.grad, learning_rate, scale, skip)
    return norm, skip


def through(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Callable[[], None]:
    """Return the backward pass of outputs with autograd history, given the loss's gradient with respect to each."""
    return lambda: torch.autograd.backward(outputs, gradients)
