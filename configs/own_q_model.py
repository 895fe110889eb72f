"""A Q network of your own: `model.kind = "configs.own_q_model:make_model"`, run from the repository root.

Try it: rltrain run configs/dqn_cartpole.toml --set model.kind=configs.own_q_model:make_model
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltrain.fields import EnvSpec


class QNet(nn.Module):
    """Layers over all parts of the observation side by side, one output for each action."""

    def __init__(self, spec: EnvSpec, width: int):
        super().__init__()
        self.names = [leaf.name for leaf in spec.obs]  # `obs`, or of a Dict `obs.<key>` each
        num_inputs = sum(torch.Size(leaf.shape).numel() for leaf in spec.obs)
        num_actions = spec.action.nvec[0]
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_actions)
        )

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Return the value of each action, float32 [B, actions]."""
        rows = [obs[name].reshape(len(obs[name]), -1).float() for name in self.names]
        return self.layers(torch.cat(rows, 1))


def make_model(spec: EnvSpec, width: int = 64) -> nn.Module:
    """Build the network. Keyword arguments come from `model.kwargs`."""
    return QNet(spec, width)
