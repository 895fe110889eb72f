"""A network of your own: `model.kind = "configs.own_model:make_model"`, run from the repository root.

Try it: rltrain run configs/cartpole.toml --set model.kind=configs.own_model:make_model
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltrain.fields import EnvSpec
from rltrain.models.heads import make_head


class ResidualNet(nn.Module):
    """One residual block over a plain observation, its values taken as numbers, shared by policy and value."""

    def __init__(self, spec: EnvSpec, width: int):
        super().__init__()
        (leaf,) = spec.obs  # a Dict observation has several; each comes under its own name
        self.name = leaf.name
        self.inputs = nn.Linear(torch.Size(leaf.shape).numel(), width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.head = make_head(spec.action, "auto", 0.0)  # fits any action space
        self.policy_outputs = nn.Linear(width, self.head.num_outputs)
        self.value_output = nn.Linear(width, 1)
        nn.init.orthogonal_(self.policy_outputs.weight, 0.01)
        self.noise_components = self.head.noise_components
        """Uniform numbers per row that sampling an action wants."""

    def _features(self, obs: dict[str, Tensor]) -> Tensor:
        rows = obs[self.name]  # [B, *leaf.shape]; a Discrete leaf has no axis but B
        hidden = self.inputs(rows.reshape(len(rows), -1).float())
        return hidden + self.block(hidden)

    def policy(self, obs: dict[str, Tensor]):
        """Return the action distributions of [B] rows; all that the inference server calls."""
        return self.head(self.policy_outputs(self._features(obs)))

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Return the values, float32 [B]."""
        return self.value_output(self._features(obs)).squeeze(1)

    def policy_and_value(self, obs: dict[str, Tensor], num_policy_rows: int | None = None):
        """Return both, the distributions of the first `num_policy_rows` rows only."""
        features = self._features(obs)
        return self.head(self.policy_outputs(features[:num_policy_rows])), self.value_output(features).squeeze(1)

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Called after each batch when `env.normalize_obs` is on; this network keeps no statistics."""


def make_model(spec: EnvSpec, width: int = 64) -> nn.Module:
    """Build the network. Keyword arguments come from `model.kwargs`."""
    return ResidualNet(spec, width)
