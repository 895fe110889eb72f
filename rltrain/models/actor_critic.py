"""Actor and critic over one observation, with networks of their own or a shared body."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rltrain.fields import EnvSpec
from rltrain.models.distributions import Distribution
from rltrain.models.heads import make_head
from rltrain.models.mlp import DenseStack, run_stacks
from rltrain.models.obs_encoder import ObsEncoder, ObsNormalisers

_POLICY_GAIN, _VALUE_GAIN = 0.01, 1.0


class ActorCritic(nn.Module):
    """The built-in model.

    Args:
        spec: observation and action spaces.
        model: the `model` section as a dict.
        normalize_obs: whether float observations are normalised.

    Raises:
        ConfigError: the network or the distribution does not fit the spaces.
    """

    def __init__(self, spec: EnvSpec, model: dict, normalize_obs: bool):
        super().__init__()
        self.normalisers = ObsNormalisers(spec.obs) if normalize_obs else None
        self.head = make_head(spec.action, model["action_distribution"], model["initial_log_std"])
        self.noise_components: int = self.head.noise_components
        self.encoder = ObsEncoder(spec.obs, model["kind"])
        has_cnn = self.encoder.has_cnn
        is_separate = not has_cnn if model["separate_critic"] == "auto" else model["separate_critic"]
        # Only a CNN has weights to be separate in; what flattens and one-hots is run once for both.
        self.critic_encoder = ObsEncoder(spec.obs, model["kind"]) if is_separate and has_cnn else None
        widths, activation = (self.encoder.num_outputs, *model["hidden_sizes"]), model["activation"]
        shared, own = (widths[:1], widths) if is_separate else (widths, widths[-1:])
        self.body = DenseStack(shared, activation, activate_last=True)
        self.actor = DenseStack((*own, self.head.num_outputs), activation)
        self.critic = DenseStack((*own, 1), activation)

    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights: gain sqrt(2), 0.01 for the policy's output and 1 for the value's.

        A small policy output starts near the uniform (or zero-mean) policy whatever the observation.
        """
        self.encoder.initialize(generator)
        self.body.initialize(generator)
        self.actor.initialize(generator, _POLICY_GAIN)
        if self.critic_encoder is not None:
            self.critic_encoder.initialize(generator)
        self.critic.initialize(generator, _VALUE_GAIN)

    def policy(self, obs: dict[str, Tensor]) -> Distribution:
        """Compute the action distributions of rows name -> [B, ...]; the critic is not run."""
        return self.head(self.actor(self.body(self.encoder(self._normalised(obs)))))

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute the values, float32 [B]; a separate actor is not run."""
        obs = self._normalised(obs)
        features = self.body(self.encoder(obs)) if self.critic_encoder is None else self.critic_encoder(obs)
        return self.critic(features).squeeze(1).float()

    def policy_and_value(
        self, obs: dict[str, Tensor], num_policy_rows: int | None = None
    ) -> tuple[Distribution, Tensor]:
        """Compute both.

        Args:
            obs: rows name -> [B, ...].
            num_policy_rows: the distributions of only so many first rows are wanted; None: of all.

        Returns:
            The distributions, and the values of all rows, float32 [B].
        """
        outputs, value = self(obs, num_policy_rows)
        return self.head(outputs), value

    def forward(self, obs: dict[str, Tensor], num_policy_rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Compute the head's inputs and the values: the part that `learner.compile` compiles."""
        obs = self._normalised(obs)
        if self.critic_encoder is None:
            features = self.body(self.encoder(obs))
            actor_features, critic_features = features[:num_policy_rows], features
        else:
            actor_features = self.encoder({name: x[:num_policy_rows] for name, x in obs.items()})
            critic_features = self.critic_encoder(obs)
        outputs, value = run_stacks((self.actor, self.critic), (actor_features, critic_features))
        return outputs, value.squeeze(1).float()

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Add valid rows, name -> [B, ...], to the observation statistics, which otherwise do not move."""
        if self.normalisers is not None:
            self.normalisers.update(obs)

    def _normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return obs if self.normalisers is None else self.normalisers(obs)
