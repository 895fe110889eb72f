"""Networks and the distributions they return."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rltrain import registry
from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec
from rltrain.models.actor_critic import ActorCritic
from rltrain.models.distributions import Distribution
from rltrain.models.obs_encoder import CNN_KINDS

KINDS = ("auto", "mlp", *CNN_KINDS)


class Model(Protocol):
    """What an `nn.Module` needs to be trained; `obs` is name -> [B, ...] in the env's own dtypes."""

    noise_components: int
    """Uniforms per row that `Distribution.sample` wants."""

    def policy(self, obs: dict[str, Tensor]) -> Distribution:
        """Compute the action distributions; the inference server calls only this."""

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute the values, float32 [B]."""

    def policy_and_value(
        self, obs: dict[str, Tensor], num_policy_rows: int | None = None
    ) -> tuple[Distribution, Tensor]:
        """Compute the distributions of the first `num_policy_rows` rows (None: all) and the values of all rows."""

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Learn observation statistics from rows; called with `env.normalize_obs` only."""


def build_model(spec: EnvSpec, model: dict, normalize_obs: bool, seed: int = 0) -> nn.Module:
    """Build the network of a run.

    Args:
        spec: observation and action spaces.
        model: the `model` section as a dict.
        normalize_obs: whether float observations are normalised; statistics are buffers of the model.
        seed: seed of the initial weights. Processes that load weights need none.

    Returns:
        A module with the methods of `Model`, on the CPU, float32.

    Raises:
        ConfigError: the network does not fit the spaces, or an own model lacks a method.
    """
    kind = model["kind"]
    if kind in KINDS:
        built = ActorCritic(spec, model, normalize_obs)
        built.initialize(torch.Generator().manual_seed(seed))
        return built
    target = registry.MODELS.get(kind, kind)
    if ":" not in target:
        raise ConfigError(
            f"model.kind = {kind!r} is not known. Accepted: {', '.join((*KINDS, *registry.MODELS))}, or "
            "`module:factory` of your own."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built = registry.load_factory(target, "model.kind")(spec, **model["kwargs"])
    _check_own_model(built, kind)
    return built


def _check_own_model(model: Any, kind: str) -> None:
    members = ("noise_components", "policy", "value", "policy_and_value", "update_statistics")
    missing = [name for name in members if not hasattr(model, name)]
    if not isinstance(model, nn.Module):
        missing.insert(0, "the base class torch.nn.Module")
    if missing:
        raise ConfigError(
            f"model.kind = {kind!r} made a {type(model).__name__} that lacks {', '.join(missing)}. "
            "Accepted: an nn.Module with the members of rltrain.models.Model. Add them."
        )
    if "num_policy_rows" not in inspect.signature(model.policy_and_value).parameters:
        raise ConfigError(
            f"model.kind = {kind!r}: {type(model).__name__}.policy_and_value does not take `num_policy_rows`. "
            "Accepted: policy_and_value(obs, num_policy_rows=None). Add the argument."
        )
