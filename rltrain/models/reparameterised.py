"""Samples with a gradient: the squashed Gaussian's actions and their log-densities as functions of its parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rltrain.models.distributions import log_tanh_slope

LOG_STD_LIMITS = (-20.0, 2.0)
"""Range that a network's logarithm of the standard deviation is held in."""


def split_outputs(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log standard deviation, float32 [B, A] each, of a network's [B, 2 A]."""
    mean, log_std = outputs.float().chunk(2, 1)
    return mean, log_std.clamp(*LOG_STD_LIMITS)


def draw_squashed(outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Draw actions tanh(mean + std * normal), with gradients through both results.

    One autograd node: written out operation by operation it has fifteen, most of the time of a small network.

    Args:
        outputs: [B, 2 A], means and log standard deviations side by side.
        normal: float32 [B, A], standard normal numbers.

    Returns:
        (actions [B, A] in policy units, log-density of each in policy units [B]), float32: with the env's action
        it is less by the sum of the logarithms of the half-widths between the bounds.

    Source: Haarnoja et al. 2018 (arXiv:1812.05905), section 4.2 and appendix C.
    """
    if torch.compiler.is_compiling():  # it fuses by itself
        return _draw(*split_outputs(outputs), normal)[:2]
    return _DrawSquashed.apply(outputs, normal)


def _draw(mean: Tensor, log_std: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    std = log_std.exp()
    u = torch.addcmul(mean, std, normal)
    density = normal.square().mul(-0.5).sub(log_std).sub(log_tanh_slope(u)).sum(1)
    return torch.tanh(u), density - 0.5 * math.log(2 * math.pi) * normal.shape[1], std


class _DrawSquashed(torch.autograd.Function):
    """The chain rule of `draw_squashed`, written out."""

    @staticmethod
    def forward(ctx, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob, std = _draw(*split_outputs(outputs), normal)
        ctx.save_for_backward(outputs, normal, action, std)
        return action, log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx, action_gradient: Tensor, log_prob_gradient: Tensor):
        outputs, normal, action, std = ctx.saved_tensors
        # d action / du = 1 - action^2; d log_prob / du = 2 action, as log(1 - tanh(u)^2) falls with slope 2 tanh(u).
        density = log_prob_gradient.unsqueeze(1)
        u = torch.addcmul(action_gradient, action_gradient * action, action, value=-1)
        u.addcmul_(density, action, value=2)
        num_components = normal.shape[1]
        gradient = torch.empty(outputs.shape, dtype=u.dtype, device=u.device)
        gradient[:, :num_components] = u
        log_std = torch.sub(u.mul_(std).mul_(normal), density, out=gradient[:, num_components:])
        raw = outputs[:, num_components:]
        log_std.masked_fill_((raw < LOG_STD_LIMITS[0]) | (raw > LOG_STD_LIMITS[1]), 0)
        return gradient.to(outputs.dtype), None
