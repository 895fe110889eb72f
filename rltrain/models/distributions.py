"""Action distributions: how network outputs become actions and log-probabilities.

`sample` is a deterministic function of given uniforms, by inverse distribution functions, so that an action depends
on its (seed, env, step) and not on the batch it was computed in. Everything is float32, also under autocast.
Shapes: B rows, A components. Actions are stored actions (`fields.ActionSpec`).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LARGEST_BELOW_ONE = 1 - 2.0**-24
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_QUADRATURE = tuple(zip(_NODES.tolist(), (_WEIGHTS / _WEIGHTS.sum()).tolist(), strict=True))
"""Nodes and weights of Gauss-Hermite quadrature: the mean of f(z), z standard normal, is sum(w * f(node))."""


class Distribution(Protocol):
    """Distributions over stored actions, one for each of B rows."""

    def sample(self, uniform: Tensor) -> Tensor:
        """Return actions [B, *stored_shape] for uniforms in (0, 1), float32 [B, noise_components]."""

    def mode(self) -> Tensor:
        """Return the most likely actions, [B, *stored_shape]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B]."""

    def entropy(self) -> Tensor:
        """Return float32 [B], in nats."""


class Categorical:
    """One choice among n.

    Args:
        logits: [B, n].
    """

    def __init__(self, logits: Tensor):
        self.log_probs = torch.log_softmax(logits.float(), 1)

    def sample(self, uniform: Tensor) -> Tensor:
        """Choose the first value whose cumulative probability reaches the uniform; int64 [B].

        The uniform is scaled by the last cumulative sum, so that rounding never leads past the end, and compared
        strictly, so that a value of probability 0 is never chosen.
        """
        cumulative = self.log_probs.exp().cumsum(1)
        return (cumulative < uniform * cumulative[:, -1:]).sum(1)

    def mode(self) -> Tensor:
        """Return int64 [B]."""
        return self.log_probs.argmax(1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions int64 [B]."""
        return self.log_probs.gather(1, action.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        return -(self.log_probs.exp() * self.log_probs).sum(1)


class TwoWay:
    """One choice among two: `Categorical` for n = 2 in terms of the difference of the logits, at a tenth of the cost.

    Args:
        logit: float32 [B], logit of 1 minus logit of 0.
    """

    def __init__(self, logit: Tensor):
        self.logit = logit

    def sample(self, uniform: Tensor) -> Tensor:
        """Choose 0 where the uniform is within the probability of 0; int64 [B]."""
        return (uniform[:, 0] > torch.sigmoid(-self.logit)).long()

    def mode(self) -> Tensor:
        """Return int64 [B]; 0 on a tie."""
        return (self.logit > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions int64 [B]."""
        return logsigmoid(self.logit * (2 * action - 1))

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        return _bernoulli_entropy(self.logit)


class MultiCategorical:
    """Independent choices.

    Args:
        logits: [B, A, K], rows of components with fewer than K values filled up with a large negative number.
    """

    def __init__(self, logits: Tensor):
        self.log_probs = torch.log_softmax(logits.float(), 2)

    def sample(self, uniform: Tensor) -> Tensor:
        """Choose as `Categorical` does, each component by its own uniform; int64 [B, A]."""
        cumulative = self.log_probs.exp().cumsum(2)
        return (cumulative < uniform.unsqueeze(2) * cumulative[:, :, -1:]).sum(2)

    def mode(self) -> Tensor:
        """Return int64 [B, A]."""
        return self.log_probs.argmax(2)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions int64 [B, A]."""
        return self.log_probs.gather(2, action.unsqueeze(2)).sum((1, 2))

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        return -(self.log_probs.exp() * self.log_probs).sum((1, 2))


class Bernoulli:
    """Independent coins.

    Args:
        logits: [B, A], of 1.
    """

    def __init__(self, logits: Tensor):
        self.logits = logits.float()

    def sample(self, uniform: Tensor) -> Tensor:
        """Choose 0 where the uniform is within the probability of 0; int64 [B, A]."""
        return (uniform > torch.sigmoid(-self.logits)).long()

    def mode(self) -> Tensor:
        """Return int64 [B, A]; 0 on a tie."""
        return (self.logits > 0).long()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions int64 [B, A]."""
        return logsigmoid(self.logits * (2 * action - 1)).sum(1)

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        return _bernoulli_entropy(self.logits).sum(1)


class DiagonalGaussian:
    """Independent normal components in policy units; samples are stored unclipped, the env boundary clips.

    Args:
        mean: [B, A].
        log_std: float32 [A], or [B, A] where each row has its own.
    """

    def __init__(self, mean: Tensor, log_std: Tensor):
        self.mean = mean.float()
        self.log_std = log_std

    def sample(self, uniform: Tensor) -> Tensor:
        """Return float32 [B, A]."""
        return torch.addcmul(self.mean, torch.special.ndtri(uniform), self.log_std.exp())

    def mode(self) -> Tensor:
        """Return float32 [B, A]."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions [B, A]: the density of the stored, unclipped action."""
        standardised = (action - self.mean) * torch.exp(-self.log_std)
        constant = self.log_std.sum(-1) + _LOG_SQRT_2PI * self.log_std.shape[-1]
        return -0.5 * standardised.square().sum(1) - constant

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        per_row = self.log_std.sum(-1) + (0.5 + _LOG_SQRT_2PI) * self.log_std.shape[-1]
        return per_row.expand(self.mean.shape[0])


class SquashedGaussian:
    """tanh of independent normal components, for Box actions with finite bounds.

    A stored action is tanh(u), in policy units, held inside (-1, 1): u is recovered exactly as far as float32 has it,
    and the density is that of the action which the env gets.

    Args:
        mean: [B, A], of u.
        log_std: float32 [A], or [B, A] where each row has its own, of u.
        log_half_width: float32 [A], logarithm of half the distance between the env's bounds.

    Source: Haarnoja et al. 2018 (arXiv:1801.01290), appendix C, with the env's scale added.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, log_half_width: Tensor):
        self.gaussian = DiagonalGaussian(mean, log_std)
        self.log_half_width = log_half_width

    def sample(self, uniform: Tensor) -> Tensor:
        """Return float32 [B, A], strictly between -1 and 1."""
        return _inside(torch.tanh(self.gaussian.sample(uniform)))

    def mode(self) -> Tensor:
        """Return tanh of the mean of u, float32 [B, A]."""
        return _inside(torch.tanh(self.gaussian.mean))

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions [B, A]: the density of the env's action."""
        u = torch.atanh(_inside(action))
        return self.gaussian.log_prob(u) - (log_tanh_slope(u) + self.log_half_width).sum(1)

    def entropy(self) -> Tensor:
        """Return float32 [B]: the Gaussian's plus the mean change of log volume, by 16-point quadrature."""
        mean, std = self.gaussian.mean, self.gaussian.log_std.exp()
        slope = sum(weight * log_tanh_slope(mean + std * node) for node, weight in _QUADRATURE)
        return self.gaussian.entropy() + (slope + self.log_half_width).sum(1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)^2) without loss for large |u|."""
    return 2 * (math.log(2.0) - u - softplus(-2 * u))


def _inside(action: Tensor) -> Tensor:
    return action.clamp(-_LARGEST_BELOW_ONE, _LARGEST_BELOW_ONE)


def _bernoulli_entropy(logit: Tensor) -> Tensor:
    return torch.addcmul(softplus(logit), logit, torch.sigmoid(logit), value=-1)
