"""Networks and the distributions they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rltrain import registry
from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec
from rltrain.models.actor_critic import ActorCritic
from rltrain.models.continuous_actor import ContinuousActor, check_bounded
from rltrain.models.distributions import Distribution
from rltrain.models.obs_encoder import CNN_KINDS
from rltrain.models.own_model import check_own_model, check_own_q_network
from rltrain.models.q_network import QLayers, QNetwork, check_discrete

KINDS = ("auto", "mlp", *CNN_KINDS)


class Model(Protocol):
    """What an `nn.Module` needs to be trained by an algorithm that learns from fresh trajectories.

    `obs` is name -> rows, one entry for each leaf of `EnvSpec.obs`, in the env's own dtypes: [B, *shape] for box,
    multi_discrete and multi_binary leaves; [B], without a further axis, for discrete ones. Counted values come as the
    env gave them, `start` included. An own model is tried on two rows when it is built.
    """

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
        """Learn observation statistics from rows; needed and called with `env.normalize_obs` only."""


def compile_model(model: Any) -> None:
    """Compile what an update calls: a built-in model's networks, all of an own model's `policy_and_value`."""
    if isinstance(model, ActorCritic | QNetwork | ContinuousActor):
        model.compile()
    else:
        model.policy_and_value = torch.compile(model.policy_and_value)


def build_model(spec: EnvSpec, model: dict, normalize_obs: bool, seed: int = 0) -> nn.Module:
    """Build the network of a run.

    Args:
        spec: observation and action spaces.
        model: `Config.model_settings()`: the `model` section as a dict, and what the algorithm asks of the policy.
        normalize_obs: whether float observations are normalised; statistics are buffers of the model.
        seed: seed of the initial weights. Processes that load weights need none.

    Returns:
        A module on the CPU, float32: with the methods of `Model`, or for an algorithm that learns from replay a
        `QNetwork` or `ContinuousActor`. All have `noise_components`, `policy` and `update_statistics`.

    Raises:
        ConfigError: the network or the algorithm does not fit the spaces, or an own model lacks a method or returns
            what does not fit.
    """
    build = {
        "actor_critic": _actor_critic, "q_values": _q_network, "squashed": _continuous, "deterministic": _continuous,
    }  # fmt: skip
    return build[model.get("policy", "actor_critic")](spec, model, normalize_obs, seed)


def _actor_critic(spec: EnvSpec, model: dict, normalize_obs: bool, seed: int) -> nn.Module:
    kind = model["kind"]
    if kind in KINDS:
        built = ActorCritic(spec, model, normalize_obs)
        built.initialize(torch.Generator().manual_seed(seed))
        return built
    own = _own(spec, model, seed)
    check_own_model(own, kind, spec, normalize_obs)
    return own


def _q_network(spec: EnvSpec, model: dict, normalize_obs: bool, seed: int) -> nn.Module:
    check_discrete(spec)
    kind = model["kind"]
    if kind in KINDS:
        network: nn.Module = QLayers(spec, model)
        network.initialize(torch.Generator().manual_seed(seed))
    else:
        network = _own(spec, model, seed)
        check_own_q_network(network, kind, spec)
    return QNetwork(spec, network, normalize_obs, model["ladder_envs"])


def _continuous(spec: EnvSpec, model: dict, normalize_obs: bool, seed: int) -> nn.Module:
    check_bounded(spec.action, model["policy"])
    assert model["kind"] in KINDS, "config/resolve.py refuses networks of the user's own"
    built = ContinuousActor(spec, model, normalize_obs)
    built.initialize(torch.Generator().manual_seed(seed))
    return built


def _own(spec: EnvSpec, model: dict, seed: int) -> nn.Module:
    """Build a network of the user's, unchecked."""
    kind = model["kind"]
    target = registry.MODELS.get(kind, kind)
    if ":" not in target:
        raise ConfigError(
            f"model.kind = {kind!r} is not known. Accepted: {', '.join((*KINDS, *registry.MODELS))}, or "
            "`module:factory` of your own."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        factory = registry.load_factory(target, "model.kind")
        _check_arguments(factory, spec, model)
        return factory(spec, **model["kwargs"])


def _check_arguments(factory: Callable[..., Any], spec: EnvSpec, model: dict) -> None:
    """Raise ConfigError when `model.kwargs` are not what the factory takes."""
    try:
        inspect.signature(factory).bind(spec, **model["kwargs"])
    except TypeError as error:
        raise ConfigError(
            f"model.kwargs = {model['kwargs']!r} does not fit model.kind = {model['kind']!r}: {error}. Accepted: its "
            "arguments behind the first, which is the env spec. Correct or remove the entry."
        ) from None
    except ValueError:  # a callable without a signature says it itself
        return
