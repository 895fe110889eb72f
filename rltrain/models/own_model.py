"""Looks a model of the user's over once, when it is built: its members, and what they return for two rows."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec, EnvSpec, LeafSpec

NUM_ROWS = 2
METHODS = ("policy", "value", "policy_and_value")
DISTRIBUTION = ("sample", "mode", "log_prob", "entropy")
TOLERANCE = 1e-2
"""How far values and log-probabilities of the same rows may differ between methods; loose, for low precision."""


def check_own_model(model: Any, kind: str, spec: EnvSpec, normalize_obs: bool) -> None:
    """Check that a model has the members of `models.Model` and that they return what training relies on.

    Random generators, buffers and training modes are afterwards as before; no gradient is computed.

    Args:
        model: what the factory returned.
        kind: option `model.kind`, for messages.
        spec: observation and action spaces.
        normalize_obs: whether `update_statistics` is going to be called.

    Raises:
        ConfigError: members are missing (all are named), or a result has another type, shape or dtype.
            An exception of the model's own passes, with a note that says what it was given.
    """
    _check_members(model, kind, normalize_obs)
    obs = {leaf.name: _rows(leaf) for leaf in spec.obs}
    with _untouched(model), torch.no_grad():
        problem = _tried(lambda rows: _first_problem(model, rows, spec.action), obs, kind)
    if problem is not None:
        raise ConfigError(f"model.kind = {kind!r}: {type(model).__name__}.{problem}.")


def check_own_q_network(network: Any, kind: str, spec: EnvSpec) -> None:
    """Check that a network returns the values of all actions, as `check_own_model` does it.

    Args:
        network: what the factory returned.
        kind: option `model.kind`, for messages.
        spec: observation and action spaces; the actions are discrete.

    Raises:
        ConfigError: it is no module, has nothing to train, or returns another type or shape.
            An exception of the network's own passes, with a note that says what it was given.
    """
    wanted = "an nn.Module whose forward(obs) returns the values of all actions, a Tensor [B, A]"
    if not isinstance(network, nn.Module) or type(network).forward is nn.Module.forward:
        lacks = "forward(obs)" if isinstance(network, nn.Module) else "the base class torch.nn.Module"
        raise ConfigError(
            f"model.kind = {kind!r} made a {type(network).__name__} that lacks {lacks}. "
            f'Accepted with algo.name = "dqn": {wanted}. Add it.'
        )
    if not any(True for _ in network.parameters()):
        raise ConfigError(
            f"model.kind = {kind!r}: {type(network).__name__} has no parameters to train. Accepted: {wanted}."
        )
    obs = {leaf.name: _rows(leaf) for leaf in spec.obs}
    with _untouched(network), torch.no_grad():
        q = _tried(network, obs, kind)
    problem = None
    if not isinstance(q, Tensor):
        problem = f"returned {type(q).__name__}"
    elif list(q.shape) != [NUM_ROWS, spec.action.nvec[0]]:
        problem = f"returned shape {list(q.shape)}"
    elif not q.dtype.is_floating_point:
        problem = f"returned {q.dtype}"
    if problem is not None:
        raise ConfigError(
            f"model.kind = {kind!r}: {type(network).__name__}.forward(obs) {problem}; accepted: a float Tensor "
            f"{[NUM_ROWS, spec.action.nvec[0]]}, for each row one value for each action."
        )


def _check_members(model: Any, kind: str, normalize_obs: bool) -> None:
    methods = (*METHODS, "update_statistics") if normalize_obs else METHODS
    missing = [] if isinstance(model, nn.Module) else ["the base class torch.nn.Module"]
    missing += [] if isinstance(getattr(model, "noise_components", None), int) else ["noise_components (an int)"]
    missing += [f"{name}()" for name in methods if not callable(getattr(model, name, None))]
    both = getattr(model, "policy_and_value", None)
    if callable(both) and "num_policy_rows" not in inspect.signature(both).parameters:
        missing.append("the argument `num_policy_rows` of policy_and_value(obs, num_policy_rows=None)")
    if missing:
        raise ConfigError(
            f"model.kind = {kind!r} made a {type(model).__name__} that lacks {', '.join(missing)}. "
            "Accepted: an nn.Module with the members of rltrain.models.Model. Add them."
        )


def _tried(call: Callable[[dict[str, Tensor]], Any], obs: dict[str, Tensor], kind: str) -> Any:
    """Return what a call gives for the rows; an exception gets a note on what it was given."""
    try:
        return call(obs)
    except Exception as error:
        given = ", ".join(f"{name}: {x.dtype} {list(x.shape)}" for name, x in obs.items())
        error.add_note(f"While model.kind = {kind!r} was tried on {NUM_ROWS} rows of zeros ({given}).")
        raise


def _rows(leaf: LeafSpec) -> Tensor:
    """Return rows that the space allows: zeros, and the smallest value of counted components."""
    rows = np.zeros((NUM_ROWS, *leaf.shape), leaf.dtype)
    if leaf.start:
        rows[...] = np.array(leaf.start).reshape(leaf.shape)
    return torch.from_numpy(rows)


def _first_problem(model: Any, obs: dict[str, Tensor], action: ActionSpec) -> str | None:
    policy = model.policy(obs)
    value = model.value(obs)
    problem = _policy_problem("policy()", policy, NUM_ROWS, action) or _value_problem("value()", value)
    if problem is not None:
        return problem
    chosen = policy.mode()
    for wanted, num_rows in ((None, NUM_ROWS), (1, 1)):
        call = f"policy_and_value(obs, num_policy_rows={wanted})"
        both = model.policy_and_value(obs, wanted)
        if not isinstance(both, tuple) or len(both) != 2:
            return f"{call} returned {type(both).__name__}; accepted: the tuple (distribution, value)"
        problem = _policy_problem(call, both[0], num_rows, action) or _value_problem(call, both[1])
        if problem is not None:
            return problem
        if not _is_close(both[1], value):
            return f"{call} returned the values {both[1].tolist()}, but value(obs) {value.tolist()}; accepted: the same"
        log_probs = both[0].log_prob(chosen[:num_rows]), policy.log_prob(chosen)[:num_rows]
        if not _is_close(*log_probs):
            return (
                f"{call} gives actions the log-probabilities {log_probs[0].tolist()}, but policy(obs) "
                f"{log_probs[1].tolist()}; accepted: the same"
            )
    return None


def _policy_problem(call: str, policy: Any, num_rows: int, action: ActionSpec) -> str | None:
    missing = [name for name in DISTRIBUTION if not callable(getattr(policy, name, None))]
    if missing:
        return (
            f"{call} returned {type(policy).__name__} without {', '.join(missing)}; accepted: a Distribution such as "
            "the heads in rltrain.models.heads make"
        )
    chosen = policy.mode()
    expected = [num_rows, *action.stored_shape]
    if list(chosen.shape) != expected:
        return f"{call} returned a distribution whose mode() has shape {list(chosen.shape)}; accepted {expected}"
    log_prob = policy.log_prob(chosen)
    if list(log_prob.shape) != [num_rows]:
        return (
            f"{call} returned a distribution whose log_prob() has shape {list(log_prob.shape)}; accepted "
            f"{[num_rows]}: one number for each row"
        )
    return None


def _value_problem(call: str, value: Any) -> str | None:
    if not isinstance(value, Tensor):
        return f"{call} returned {type(value).__name__} as the value; accepted: a float32 Tensor [B]"
    if list(value.shape) != [NUM_ROWS]:
        advice = ": squeeze the last axis" if list(value.shape) == [NUM_ROWS, 1] else ": one number for each row"
        return f"{call} returned shape {list(value.shape)}; accepted {[NUM_ROWS]}{advice}"
    if value.dtype != torch.float32:
        return f"{call} returned {value.dtype}; accepted torch.float32: call .float() on it"
    return None


def _is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.float(), b.float(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Run in eval mode and put random generators, buffers and training modes back."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules() for name, buffer in module.named_buffers(recurse=False)
    ]  # fmt: skip
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            model.eval()
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for module, name, buffer, saved in buffers:
            with torch.no_grad():
                setattr(module, name, buffer.copy_(saved))
        for module, mode in modes:
            module.training = mode
