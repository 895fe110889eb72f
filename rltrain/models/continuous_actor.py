"""The policies of SAC and TD3: actions within bounds, from a network of their own.

Only what acting needs is in these modules, which are what is published; `make_critics` makes the rest for the learner.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec, EnvSpec
from rltrain.models.distributions import SquashedGaussian
from rltrain.models.exploration import NoisyAction, UniformAtFirst
from rltrain.models.mlp import DenseStack
from rltrain.models.obs_encoder import ObsEncoder, ObsNormalisers
from rltrain.models.reparameterised import draw_squashed, split_outputs
from rltrain.models.twin_critics import TwinCritics

_POLICY_GAIN = 0.01
ALGORITHM = {"squashed": "sac", "deterministic": "td3"}


def check_bounded(action: ActionSpec, policy: str) -> None:
    """Raise ConfigError unless the actions are a Box with finite bounds."""
    name = ALGORITHM[policy]
    if action.kind != "box":
        others = '"ppo", "appo" or "dqn"' if action.kind == "discrete" else '"ppo" or "appo"'
        raise ConfigError(
            f'algo.name = "{name}" needs Box actions with finite bounds, but this env\'s are {action.kind}. Use '
            f"algo.name = {others}."
        )
    bounds = zip(action.low, action.high, strict=True)
    if not all(math.isfinite(low) and math.isfinite(high) and low < high for low, high in bounds):
        raise ConfigError(
            f'algo.name = "{name}" needs Box actions with finite bounds and low < high, but this env\'s have low = '
            f'{list(action.low)}, high = {list(action.high)}. Use algo.name = "ppo" or "appo", or wrap the env so that '
            "its action space is bounded."
        )


class ContinuousActor(nn.Module):
    """Encoder and hidden layers of an actor.

    Args:
        spec: observation and action spaces; the actions are a Box with finite bounds.
        model: the `model` section as a dict, with `policy`, and for `deterministic` with `exploration_noise`.
        normalize_obs: whether float observations are normalised.

    Raises:
        ConfigError: the encoder does not fit the observations.
    """

    acts_at_random: Tensor
    log_half_width: Tensor

    def __init__(self, spec: EnvSpec, model: dict, normalize_obs: bool):
        super().__init__()
        self.spec, self.settings = spec, model
        self.is_squashed = model["policy"] == "squashed"
        num_components = spec.action.num_components
        self.noise_components = num_components
        self.normalisers = ObsNormalisers(spec.obs) if normalize_obs else None
        self.encoder = ObsEncoder(spec.obs, model["kind"])
        num_outputs = num_components * (2 if self.is_squashed else 1)
        self.layers = DenseStack((self.encoder.num_outputs, *model["hidden_sizes"], num_outputs), model["activation"])
        self.register_buffer("acts_at_random", torch.zeros((), dtype=torch.bool))
        half_widths = [high / 2 - low / 2 for low, high in zip(spec.action.low, spec.action.high, strict=True)]
        self.register_buffer("log_half_width", torch.tensor(half_widths).log(), persistent=False)
        self.log_volume = num_components * math.log(2.0) + sum(map(math.log, half_widths)) * self.is_squashed

    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights: gain sqrt(2), 0.01 for the outputs: actions near the middle, of deviation 1."""
        self.encoder.initialize(generator)
        self.layers.initialize(generator, _POLICY_GAIN)

    def make_critics(self, generator: torch.Generator) -> TwinCritics:
        """Return fresh critics for the same spaces, on the CPU."""
        critics = TwinCritics(self.spec, self.settings)
        critics.initialize(generator)
        return critics

    def policy(self, obs: dict[str, Tensor]) -> UniformAtFirst:
        """Compute the action distributions of rows name -> [B, ...], as the env gave them."""
        outputs = self(self.normalised(obs))
        if self.is_squashed:
            policy: SquashedGaussian | NoisyAction = SquashedGaussian(*split_outputs(outputs), self.log_half_width)
        else:
            policy = NoisyAction(outputs, self.settings["exploration_noise"])
        return UniformAtFirst(policy, self.acts_at_random, self.log_volume)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute from normalised observations what `draw` wants, [B, 2 A]; for TD3 the actions, float32 [B, A]."""
        outputs = self.layers(self.encoder(obs))
        return outputs if self.is_squashed else outputs.float().tanh()

    def draw(self, outputs: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions with a gradient, see `reparameterised.draw_squashed`; in policy units, for SAC."""
        return draw_squashed(outputs, normal)

    def normalised(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return observations as `forward` and the critics want them."""
        return obs if self.normalisers is None else self.normalisers(obs)

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Add rows, name -> [B, ...], to the observation statistics, which otherwise do not move."""
        if self.normalisers is not None:
            self.normalisers.update(obs)

    @torch.no_grad()
    def set_exploration(self, acts_at_random: bool) -> None:
        """Set whether samples are any action at all."""
        self.acts_at_random.fill_(acts_at_random)
