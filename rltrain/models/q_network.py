"""The policy of DQN: a value for each of a discrete env's actions, and how often a random one is taken instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec
from rltrain.models.exploration import EpsilonGreedy, EpsilonLadder
from rltrain.models.mlp import DenseStack, run_stacks
from rltrain.models.obs_encoder import ObsEncoder, ObsNormalisers

_VALUE_GAIN = 1.0


def check_discrete(spec: EnvSpec) -> None:
    """Raise ConfigError when there is no value for each action."""
    if spec.action.kind != "discrete":
        others = ', "sac" or "td3" where Box actions have finite bounds' if spec.action.kind == "box" else ""
        raise ConfigError(
            f'algo.name = "dqn" needs one value for each action, but this env\'s are {spec.action.kind} of shape '
            f'{spec.action.shape}. Accepted: an env with Discrete actions. Use algo.name = "ppo" or "appo"{others}.'
        )


class QNetwork(nn.Module):
    """Values of actions, and the exploring policy made of them.

    Args:
        spec: observation and action spaces; the actions are discrete.
        network: maps observations, name -> [B, ...], to values [B, A].
        normalize_obs: whether float observations are normalised before `network` has them.
        ladder_envs: envs in the whole run where each has its own probability of a random action, or None.
    """

    noise_components = 2
    epsilon: Tensor

    def __init__(self, spec: EnvSpec, network: nn.Module, normalize_obs: bool, ladder_envs: int | None):
        super().__init__()
        self.normalisers = ObsNormalisers(spec.obs) if normalize_obs else None
        self.network = network
        self.ladder_envs = ladder_envs
        self.register_buffer("epsilon", torch.zeros(()))

    def policy(self, obs: dict[str, Tensor]) -> EpsilonGreedy:
        """Compute the action distributions of rows name -> [B, ...], as the env gave them."""
        q = self(self.normalised(obs))
        return EpsilonGreedy(q, self.epsilon) if self.ladder_envs is None else EpsilonLadder(
            q, self.epsilon, self.ladder_envs
        )  # fmt: skip

    def normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return observations as `forward` wants them."""
        return obs if self.normalisers is None else self.normalisers(obs)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute the values, float32 [B, A], of normalised observations."""
        return self.network(obs).float()

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Add rows, name -> [B, ...], to the observation statistics, which otherwise do not move."""
        if self.normalisers is not None:
            self.normalisers.update(obs)

    @torch.no_grad()
    def set_exploration(self, epsilon: float) -> None:
        """Set the probability of a random action."""
        self.epsilon.fill_(epsilon)


class QLayers(nn.Module):
    """The built-in network: encoder, hidden layers, one output for each action.

    With dueling streams, all hidden layers but the last are shared, and each stream has a last one of its own.

    Args:
        spec: observation and action spaces.
        model: the `model` section as a dict, with `dueling`.

    Raises:
        ConfigError: the encoder does not fit the observations.

    Source: Wang et al. 2016 (arXiv:1511.06581), equation 9 (dueling).
    """

    def __init__(self, spec: EnvSpec, model: dict):
        super().__init__()
        num_actions, activation = spec.action.nvec[0], model["activation"]
        self.encoder = ObsEncoder(spec.obs, model["kind"])
        widths = (self.encoder.num_outputs, *model["hidden_sizes"])
        shared = widths if not model["dueling"] else widths[: max(1, len(widths) - 1)]
        own = widths[len(shared) - 1 :]
        self.body = DenseStack(shared, activation, activate_last=True)
        self.advantage = DenseStack((*own, num_actions), activation)
        self.value = DenseStack((*own, 1), activation) if model["dueling"] else None

    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights: gain sqrt(2), 1 for the outputs."""
        self.encoder.initialize(generator)
        self.body.initialize(generator)
        self.advantage.initialize(generator, _VALUE_GAIN)
        if self.value is not None:
            self.value.initialize(generator, _VALUE_GAIN)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute the values [B, A] of rows name -> [B, ...]."""
        features = self.body(self.encoder(obs))
        if self.value is None:
            return self.advantage(features)
        advantage, value = run_stacks((self.advantage, self.value), (features, features))
        return advantage + (value - advantage.mean(1, keepdim=True))
