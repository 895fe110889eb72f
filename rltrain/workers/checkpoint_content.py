"""What a checkpoint must hold: keys, types and ranges, checked as a whole before anything of it is used.

Owns: nothing. Called by `checkpoints.py` on what it has read.
Written by, read by: nobody; these are functions.
Blocks on, unblocked by: nothing.
If the peer dies: there is none.

A file with a right checksum may still hold anything: it may come from a newer or a changed program. Whoever resumes or
evaluates can rely on `SCHEMA` afterwards, so that a wrong value is told here by name and is not met later by chance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch

from rltrain.config.load import config_from_dict
from rltrain.config.schema import Config
from rltrain.fields import EnvSpec, FragmentSchema

LARGEST_COUNT = 2**53
"""Counts are also told as JSON numbers, which are exact up to here."""
_SNAPSHOT_ROOM = 2
"""Env states may be this many times larger than the bound in the spec: it is one actor's, measured at its start."""

Rule = Callable[[Any, str], None]


class _Wrong(Exception):
    """Something is not as it must be; its text says what."""


def validate(state: Any) -> dict[str, Any]:
    """Return `state` as it is if it is what the learner saves.

    Args:
        state: anything that was read from a file.

    Raises:
        ValueError: it is something else; says which entry and what is accepted.
    """
    try:
        _table(SCHEMA)(state, "")
        _check_together(state)
    except _Wrong as problem:
        raise ValueError(str(problem)) from None
    return state


def _check_together(state: dict[str, Any]) -> None:
    """Check what one entry says about another."""
    spec = _parsed(state["spec"], "spec", EnvSpec.from_dict)
    config: Config = _parsed(state["config"], "config", config_from_dict)
    num_actors, num_envs = config.actors.num_actors, config.actors.envs_per_group
    if num_actors == "auto":
        raise _Wrong("config.actors.num_actors is not resolved")
    num_lanes = num_actors * config.actors.groups_per_actor
    train, episodes = state["train_state"], state["episodes"]
    weight_bytes, optimizer = len(train["weights"]), train["optimizer"]
    num_parameters = len(optimizer["mean"])
    if len(optimizer["mean_square"]) != num_parameters or 4 * num_parameters > weight_bytes:
        raise _Wrong("train_state.optimizer.mean or .mean_square is not of the weights in train_state.weights")
    if len(state["previous_weights"]) not in ((0, weight_bytes) if state["version"] else (0,)):
        raise _Wrong(f"previous_weights has {len(state['previous_weights'])} bytes, the weights {weight_bytes}")
    if len(train["reward_scaler"]["running_return"]) != num_lanes * num_envs:
        raise _Wrong(f"train_state.reward_scaler.running_return is not of {num_lanes * num_envs} envs")
    if len(episodes["returns"]) != len(episodes["lengths"]) or len(episodes["returns"]) > episodes["num_episodes"]:
        raise _Wrong("episodes has not one length for each return")
    _check_snapshots(state["snapshots"], num_lanes, *_parsed(spec, "spec", lambda spec: _sizes(spec, num_envs)))


def _check_snapshots(snapshots: dict[str, torch.Tensor], num_lanes: int, carried: int, bound: int) -> None:
    lanes = {str(lane) for lane in range(num_lanes)}
    largest = carried + _SNAPSHOT_ROOM * bound
    for lane, snapshot in snapshots.items():
        if lane not in lanes:
            raise _Wrong(f"snapshots has lane {lane!r}, the run had {num_lanes} lanes")
        if not carried < len(snapshot) <= largest:
            raise _Wrong(f"snapshots.{lane} has {len(snapshot)} bytes, not more than {carried} and up to {largest}")


def _sizes(spec: EnvSpec, num_envs: int) -> tuple[int, int]:
    """Bytes of the observations that go with a group's state, and the bound for that state."""
    fields = FragmentSchema.for_env(spec, 1, num_envs).fields
    return sum(f.row_bytes(num_envs) for f in fields if f.name.split(".")[0] == "obs"), int(spec.snapshot_bytes)


def _parsed(value: Any, path: str, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(json.loads(value) if isinstance(value, str) else value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise _Wrong(f"{path} cannot be understood ({type(error).__name__})") from None


def _named(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _told(value: Any) -> str:
    """A value in few words; a tensor's content says nothing."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor {list(value.shape)}".replace("torch.", "")
    return repr(value)[:60] if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"


def _table(rules: dict[str, Rule]) -> Rule:
    def check(value: Any, path: str) -> None:
        if type(value) is not dict:
            raise _Wrong(f"{path or 'its content'} is {_told(value)}, not a dict")
        for key, rule in rules.items():
            if key not in value:
                raise _Wrong(f"{_named(path, key)} is missing")
            rule(value[key], _named(path, key))

    return check


def _each(rule: Rule) -> Rule:
    """A dict from text to what `rule` accepts."""

    def check(value: Any, path: str) -> None:
        if type(value) is not dict:
            raise _Wrong(f"{path} is {_told(value)}, not a dict")
        for key, item in value.items():
            if type(key) is not str:
                raise _Wrong(f"{path} has the key {_told(key)}, not text")
            rule(item, _named(path, key))

    return check


def _list_of(*kinds: type) -> Rule:
    def check(value: Any, path: str) -> None:
        if type(value) is not list or any(type(item) not in kinds for item in value):
            raise _Wrong(f"{path} is {_told(value)}, not a list of numbers")

    return check


def _count(value: Any, path: str) -> None:
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise _Wrong(f"{path} is {_told(value)}, not a whole number from 0 to 2**53")


def _number(value: Any, path: str) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _Wrong(f"{path} is {_told(value)}, not a finite number")


def _text(value: Any, path: str) -> None:
    if type(value) is not str:
        raise _Wrong(f"{path} is {_told(value)}, not text")


def _tensor(dtype: torch.dtype | None = None, num_axes: int | None = None) -> Rule:
    def check(value: Any, path: str) -> None:
        if (
            type(value) is not torch.Tensor
            or value.layout != torch.strided
            or value.device.type != "cpu"
            or value.requires_grad
            or dtype not in (None, value.dtype)
            or num_axes not in (None, value.ndim)
        ):
            kind = "" if dtype is None else f"{dtype} ".removeprefix("torch.")
            axes = "" if num_axes is None else f" with {num_axes} axes"
            raise _Wrong(f"{path} is {_told(value)}, not a plain {kind}tensor{axes}")

    return check


SCHEMA: dict[str, Rule] = {
    "version": _count,
    "env_steps": _count,
    "next_log": _count,
    "episodes": _table({"returns": _list_of(int, float), "lengths": _list_of(int), "num_episodes": _count}),
    "spec": _text,
    "config": _text,
    "model": _each(_tensor()),
    "train_state": _table({
        "weights": _tensor(torch.uint8, 1),
        "optimizer": _table({
            "mean": _tensor(torch.float32, 1),
            "mean_square": _tensor(torch.float32, 1),
            "num_steps": _tensor(torch.float32, 0),
        }),
        "generator": _tensor(torch.uint8, 1),
        "reward_scaler": _table({
            "running_return": _tensor(torch.float64, 1),
            "mean": _tensor(torch.float64, 0),
            "variance": _tensor(torch.float64, 0),
            "count": _tensor(torch.float64, 0),
        }),
        "updates": _count,
        "bad_updates": _count,
        "bad_updates_in_a_row": _count,
    }),
    "training": _table({"algorithm": _each(_tensor()), "replay": _each(_tensor()), "ratio": _each(_number)}),
    "previous_weights": _tensor(torch.uint8, 1),
    "snapshots": _each(_tensor(torch.uint8, 1)),
}
"""Every entry, by name; what is not listed is ignored."""
