"""The options of each algorithm, apart from its mathematics so that a config mistake is reported without torch.

An algorithm `x` is a file `algos/x.py` and a class here, listed in `AlgoSection`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Unit = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class AlgoConfig(BaseModel):
    """Options every policy-gradient algorithm has."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

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
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coef_end: NonNegative | None = None
    """Weight of the entropy bonus at `run.total_env_steps`, reached linearly; none keeps it constant."""
    value_coef: NonNegative = 0.5
    """Weight of the value loss."""


class PpoConfig(AlgoConfig):
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


class AppoConfig(AlgoConfig):
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


class AlgoSection(BaseModel):
    """Which algorithm trains, and the options of each; only the chosen one's may be set."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    name: Literal["ppo", "appo"] = "ppo"
    """The algorithm; a file of that name under `algos/`."""
    ppo: PpoConfig = PpoConfig()
    appo: AppoConfig = AppoConfig()

    @property
    def chosen(self) -> PpoConfig | AppoConfig:
        """The options of the chosen algorithm."""
        return self.ppo if self.name == "ppo" else self.appo
