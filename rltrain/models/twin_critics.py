"""Two values of an action, from networks of their own that run side by side; the smaller one is believed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltrain.fields import EnvSpec
from rltrain.models.mlp import DenseStack, run_stacks
from rltrain.models.obs_encoder import ObsEncoder

_VALUE_GAIN = 1.0


class TwinCritics(nn.Module):
    """Two critics over one encoder.

    Args:
        spec: observation and action spaces; the actions are a Box.
        model: the `model` section as a dict.

    Source: Fujimoto et al. 2018 (arXiv:1802.09477), section 4.2.
    """

    def __init__(self, spec: EnvSpec, model: dict):
        super().__init__()
        self.encoder = ObsEncoder(spec.obs, model["kind"])
        num_inputs = self.encoder.num_outputs + spec.action.num_components
        sizes = (num_inputs, *model["hidden_sizes"], 1)
        self.first, self.second = (DenseStack(sizes, model["activation"]) for _ in range(2))

    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights: gain sqrt(2), 1 for the outputs."""
        self.encoder.initialize(generator)
        self.first.initialize(generator, _VALUE_GAIN)
        self.second.initialize(generator, _VALUE_GAIN)

    def forward(self, obs: dict[str, Tensor], action: Tensor, are_frozen: bool = False) -> tuple[Tensor, Tensor]:
        """Compute both values.

        Args:
            obs: normalised observations, name -> [B, ...].
            action: float32 [B, A], in policy units.
            are_frozen: compute gradients of `action` only.

        Returns:
            float32 [B] of each critic.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not are_frozen):
            features = self.encoder(obs)
        x = torch.cat([features, action], 1)
        first, second = run_stacks((self.first, self.second), (x, x), are_frozen)
        return first.squeeze(1).float(), second.squeeze(1).float()
