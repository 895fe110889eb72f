"""The options of each algorithm, apart from its mathematics so that a config mistake is reported without torch.

An algorithm `x` is a file `algos/x.py` and a class here, listed in `AlgoSection`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Unit = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


_RULES = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class AlgoConfig(BaseModel):
    """Options every algorithm has."""

    model_config = _RULES

    learning_rate: Positive = 3e-4
    """Adam's step size at the start."""
    learning_rate_end: NonNegative | None = None
    """Step size at `run.total_env_steps`, reached linearly in env steps; none keeps it constant."""
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Adam's decay of the gradient mean."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Adam's decay of the squared gradient mean."""
    adam_eps: Positive = 1e-5
    """Adam's denominator offset."""
    max_grad_norm: Positive | None = 0.5
    """Gradients are scaled down to this global L2 norm; none leaves them."""
    discount: Unit = 0.99
    """Discount factor gamma per env step."""


class PolicyGradientOptions(BaseModel):
    """What an algorithm that learns from fresh trajectories, once, has besides."""

    model_config = _RULES

    source: ClassVar[Literal["fresh", "replay"]] = "fresh"
    policy: ClassVar[Literal["actor_critic", "q_values", "squashed", "deterministic"]] = "actor_critic"

    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coef_end: NonNegative | None = None
    """Weight of the entropy bonus at `run.total_env_steps`, reached linearly; none keeps it constant."""
    value_coef: NonNegative = 0.5
    """Weight of the value loss."""


class PpoConfig(PolicyGradientOptions, AlgoConfig):
    """Proximal policy optimisation with generalised advantage estimation."""

    gae_lambda: Unit = 0.95
    """Decay of generalised advantage estimation."""
    clip_range: Positive = 0.2
    """Importance ratios are clipped to [1 - x, 1 + x]."""
    clip_range_value: Positive | None = None
    """Clip value changes to +- this; none does not clip."""
    epochs: Count = 4
    """Passes over each batch."""
    num_minibatches: Count = 4
    """Parts into which a batch is split for the updates of one epoch."""
    normalize_advantage: bool = True
    """Subtract the mean of the minibatch's advantages and divide by their standard deviation."""
    target_kl: Positive | None = None
    """Leave the remaining epochs of a batch once the approximate KL divergence exceeds this."""


class AppoConfig(PolicyGradientOptions, AlgoConfig):
    """Asynchronous PPO with V-trace targets; with one epoch and no clip it is IMPALA."""

    epochs: Count = 1
    """Passes over each batch."""
    num_minibatches: Count = 1
    """Parts into which the env columns of a batch are split for the updates of one epoch."""
    clip_range: Positive | None = 0.2
    """Importance ratios are clipped to [1 - x, 1 + x]; none is the plain policy gradient of IMPALA."""
    vtrace_rho_clip: Positive = 1.0
    """Upper limit of the importance ratio in the V-trace temporal differences (rho bar)."""
    vtrace_c_clip: Positive = 1.0
    """Upper limit of the importance ratio in the V-trace trace coefficients (c bar)."""
    vtrace_lambda: Unit = 1.0
    """Extra decay of the V-trace coefficients (Remark 2 of the paper)."""
    normalize_advantage: bool = True
    """Subtract the mean of the minibatch's advantages and divide by their standard deviation."""
    replay_share: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """Part of what is learned from that is drawn from earlier fragments instead of being fresh; 0 is none."""
    replay_columns: Count = 4096
    """Earlier fragments that are kept for it, one for each env. Unit: fragments of one env."""
    replay_alpha: Unit = 0.6
    """Earlier fragments are drawn in proportion to this power of their last error; 0 is uniform."""


class DqnConfig(AlgoConfig):
    """Deep Q-learning from replay: double, dueling, n-step (`replay.n_step`); for discrete actions."""

    source: ClassVar[Literal["replay"]] = "replay"
    policy: ClassVar[Literal["q_values"]] = "q_values"

    max_grad_norm: Positive | None = 10.0
    """Gradients are scaled down to this global L2 norm; none leaves them."""
    double: bool = True
    """The network that is trained chooses the next action and the target network values it; else the target network
    does both, which overestimates."""
    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""
    loss: Literal["huber", "squared"] = "huber"
    """Of the temporal-difference error: `squared` is half its square; `huber` is the same up to 1, linear beyond. Where
    values are in the tens, as with rewards that are not clipped, `squared` keeps rare large errors from growing."""
    target_every_updates: Count = 500
    """Distance between changes of the target network. Unit: updates."""
    target_tau: Share = 1.0
    """Part of the way that each change takes the target network towards the trained one; 1 is a copy."""
    epsilon_start: Unit = 1.0
    """Probability of a random action at the start."""
    epsilon_end: Unit = 0.05
    """Probability of a random action from `epsilon_fraction` on."""
    epsilon_fraction: Share = 0.1
    """Part of `run.total_env_steps` in which the probability goes from start to end in a straight line."""
    epsilon_ladder: bool = False
    """Give env i of E the probability epsilon ** (1 + 7 i / (E - 1)): one explores much and others little, at any
    time (Ape-X)."""


class ActorCriticReplayOptions(BaseModel):
    """What algorithms with an actor and twin critics that learn from replay have in common."""

    model_config = _RULES

    source: ClassVar[Literal["replay"]] = "replay"

    max_grad_norm: Positive | None = None
    """Gradients of actor and of critics are each scaled down to this global L2 norm; none leaves them."""
    target_tau: Share = 0.005
    """Part of the way that each update takes the target networks towards the trained ones."""


class SacConfig(ActorCriticReplayOptions, AlgoConfig):
    """Soft actor-critic from replay; for Box actions with finite bounds."""

    policy: ClassVar[Literal["squashed"]] = "squashed"

    initial_temperature: Positive = 1.0
    """Weight of the entropy at the start. Unit: reward per nat."""
    learn_temperature: bool = True
    """Adjust the weight of the entropy so that the policy has `target_entropy`."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy that the policy is held at, with actions in [-1, 1] whatever the env's bounds. `auto`: minus the number
    of action components. Unit: nats."""


class Td3Config(ActorCriticReplayOptions, AlgoConfig):
    """Twin delayed deterministic policy gradient from replay; for Box actions with finite bounds."""

    policy: ClassVar[Literal["deterministic"]] = "deterministic"

    exploration_noise: NonNegative = 0.1
    """Standard deviation of the Gaussian noise on actions while collecting. Unit: half of the distance between the
    action's bounds."""
    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on the actions in targets. Unit: as `exploration_noise`."""
    target_noise_clip: NonNegative = 0.5
    """Noise on the actions in targets is clipped to +- this. Unit: as `exploration_noise`."""
    actor_every_updates: Count = 2
    """Updates of the critics for each one of the actor and the target networks. Unit: updates."""


class NullConfig(AlgoConfig):
    """Learns nothing: for measuring what everything but the learning costs (`rltrain bench roofline`)."""

    source: ClassVar[Literal["fresh"]] = "fresh"
    policy: ClassVar[Literal["actor_critic"]] = "actor_critic"


Chosen = PpoConfig | AppoConfig | DqnConfig | SacConfig | Td3Config | NullConfig


class AlgoSection(BaseModel):
    """Which algorithm trains, and the options of each; only the chosen one's may be set."""

    model_config = _RULES

    name: Literal["ppo", "appo", "dqn", "sac", "td3", "null"] = "ppo"
    """The algorithm; a file of that name under `algos/`."""
    ppo: PpoConfig = PpoConfig()
    appo: AppoConfig = AppoConfig()
    dqn: DqnConfig = DqnConfig()
    sac: SacConfig = SacConfig()
    td3: Td3Config = Td3Config()
    null: NullConfig = NullConfig()

    @property
    def chosen(self) -> Chosen:
        """The options of the chosen algorithm."""
        chosen: Chosen = getattr(self, self.name)
        return chosen
