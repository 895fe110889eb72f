"""A policy that computes nothing: the stand-in of `rltrain bench roofline`. Its actions are all zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rltrain.fields import ActionSpec, EnvSpec


class Still:
    """The distribution that always says the same.

    Args:
        action: the action space.
        num_rows: B.
        device: of its tensors.
    """

    def __init__(self, action: ActionSpec, num_rows: int, device: torch.device):
        dtype = torch.int64 if action.stored_dtype == "int64" else torch.float32
        self._action = torch.zeros((num_rows, *action.stored_shape), dtype=dtype, device=device)
        self._number = torch.zeros(num_rows, device=device)

    def sample(self, noise: Tensor) -> Tensor:
        """Return zeros, as the env's actions are stored."""
        return self._action

    def mode(self) -> Tensor:
        """Return zeros, as the env's actions are stored."""
        return self._action

    def log_prob(self, action: Tensor) -> Tensor:
        """Return zeros, float32 [B]."""
        return self._number

    def entropy(self) -> Tensor:
        """Return zeros, float32 [B]."""
        return self._number


class NullModel(nn.Module):
    """One weight, which is not used.

    Args:
        spec: observation and action spaces.
    """

    noise_components = 1

    def __init__(self, spec: EnvSpec):
        super().__init__()
        self.action = spec.action
        self.weight = nn.Parameter(torch.zeros(1))

    def policy(self, obs: dict[str, Tensor]) -> Any:
        """Return the distributions of [B] rows."""
        return self._still(obs, None)

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Return zeros, float32 [B]."""
        return self.weight.expand(len(next(iter(obs.values()))))

    def policy_and_value(self, obs: dict[str, Tensor], num_policy_rows: int | None = None) -> tuple[Any, Tensor]:
        """Return both, the distributions of the first `num_policy_rows` rows only."""
        return self._still(obs, num_policy_rows), self.value(obs)

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Keep none."""

    def _still(self, obs: dict[str, Tensor], num_rows: int | None) -> Any:
        rows = next(iter(obs.values()))
        return Still(self.action, len(rows) if num_rows is None else num_rows, rows.device)


def make_model(spec: EnvSpec) -> nn.Module:
    """Build the model; `model.kind = "null"`."""
    return NullModel(spec)
