"""Policy heads: what each action space needs from a network, and the distribution made of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec
from rltrain.models.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    TwoWay,
)

_IMPOSSIBLE = -1e30
"""Logit of values that a component does not have; finite, so that 0 * log(0) is 0 in the entropy."""


class DiscreteHead(nn.Module):
    """One choice among n: n logits.

    Args:
        action: the action space.
    """

    contrast: Tensor

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.num_outputs = action.nvec[0]
        self.noise_components = 1
        self.register_buffer("contrast", torch.tensor([-1.0, 1.0]), persistent=False)

    def forward(self, outputs: Tensor) -> Distribution:
        """Make the distribution of [B, num_outputs]."""
        if self.num_outputs == 2:
            return TwoWay((outputs.float() * self.contrast).sum(1))  # not mv: CUDA's autocast lowers it
        return Categorical(outputs)


class MultiDiscreteHead(nn.Module):
    """Independent choices: the logits of all components one after the other.

    Args:
        action: the action space.
    """

    position: Tensor

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.num_outputs = sum(action.nvec)
        self.noise_components = len(action.nvec)
        largest = max(action.nvec)
        # Position of (component, value) among the outputs; one past the end where there is no such value.
        position = torch.full((len(action.nvec), largest), self.num_outputs)
        for i, n in enumerate(action.nvec):
            position[i, :n] = torch.arange(n) + sum(action.nvec[:i])
        self.register_buffer("position", position, persistent=False)

    def forward(self, outputs: Tensor) -> Distribution:
        """Make the distribution of [B, num_outputs]."""
        padded = nn.functional.pad(outputs.float(), (0, 1), value=_IMPOSSIBLE)
        return MultiCategorical(padded[:, self.position])


class MultiBinaryHead(nn.Module):
    """Independent coins: one logit each.

    Args:
        action: the action space.
    """

    def __init__(self, action: ActionSpec):
        super().__init__()
        self.num_outputs = self.noise_components = action.num_components

    def forward(self, outputs: Tensor) -> Distribution:
        """Make the distribution of [B, num_outputs]."""
        return Bernoulli(outputs)


class GaussianHead(nn.Module):
    """Means from the network, one learned log standard deviation for each component.

    Args:
        action: the action space.
        initial_log_std: start of the log standard deviations, in policy units.
        is_squashed: whether samples go through tanh.

    Raises:
        ConfigError: squashed, and a component has an infinite bound.
    """

    log_half_width: Tensor

    def __init__(self, action: ActionSpec, initial_log_std: float, is_squashed: bool):
        super().__init__()
        self.num_outputs = self.noise_components = action.num_components
        self.is_squashed = is_squashed
        self.log_std = nn.Parameter(torch.full((self.num_outputs,), float(initial_log_std)))
        bounds = list(zip(action.low, action.high, strict=True))
        if is_squashed:
            if not all(math.isfinite(low) and math.isfinite(high) and low < high for low, high in bounds):
                raise ConfigError(
                    f"model.action_distribution = 'squashed_gaussian' needs finite bounds with low < high, but the "
                    f"actions have low = {list(action.low)}, high = {list(action.high)}. Use 'gaussian', or wrap the "
                    "env so that its action space is bounded."
                )
            half_widths = [high / 2 - low / 2 for low, high in bounds]
            self.register_buffer("log_half_width", torch.tensor(half_widths).log(), persistent=False)

    def forward(self, outputs: Tensor) -> Distribution:
        """Make the distribution of [B, num_outputs]."""
        if self.is_squashed:
            return SquashedGaussian(outputs, self.log_std, self.log_half_width)
        return DiagonalGaussian(outputs, self.log_std)


def make_head(action: ActionSpec, action_distribution: str, initial_log_std: float) -> nn.Module:
    """Build the head of an action space.

    Args:
        action: the action space.
        action_distribution: option `model.action_distribution`.
        initial_log_std: option `model.initial_log_std`.

    Raises:
        ConfigError: a distribution was chosen that the action space does not allow.
    """
    if action.kind == "box":
        return GaussianHead(action, initial_log_std, action_distribution == "squashed_gaussian")
    if action_distribution != "auto":
        raise ConfigError(
            f"model.action_distribution = {action_distribution!r} is for Box actions, but this env's are "
            f"{action.kind}. Use 'auto'."
        )
    heads = {"discrete": DiscreteHead, "multi_discrete": MultiDiscreteHead, "multi_binary": MultiBinaryHead}
    return heads[action.kind](action)
