"""The values that `auto` stands for, and the rules that tie options of several sections together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rltrain.config.algorithms import AppoConfig, PpoConfig
from rltrain.config.machine import can_pin, usable_cores
from rltrain.config.model_rules import BUILT_IN_MODELS, Say, check_factories, check_model
from rltrain.config.options import leaves
from rltrain.config.replay_rules import check_replay, unused_options
from rltrain.config.schema import Config
from rltrain.config.source import Source
from rltrain.config.validate import config_from_dict, show

Number = TypeVar("Number", int, float, bool)
MAX_AUTO_ACTORS = 32
LARGEST_RING_ROWS = 10**8
ADAPTIVE_DELAY_US = 5000
"""Bound of an adaptive delay: long beside a forward pass, short beside the time in which anybody would notice."""
AUTO_IF_UNUSED = (
    "pipeline.max_batch_size", "pipeline.max_queue_delay_us", "pipeline.adaptive",
    "learner.min_batch_fragments", "learner.max_batch_fragments",
    "replay.updates_per_env_step",
)
SERVER_OPTIONS = (
    "max_batch_size", "preferred_batch_sizes", "max_queue_delay_us", "adaptive", "inference_device", "cuda_graphs",
)


def derive(config: Config) -> dict[str, Any]:
    """Return the value of each option that is `auto` and depends only on the configuration and this machine.

    Args:
        config: valid; `auto` options that need the env or the device stay as they are.

    Returns:
        Full option path -> value.
    """
    cores = usable_cores()
    actors, pipeline, learner = config.actors, config.pipeline, config.learner
    num_actors = _or(actors.num_actors, min(max(cores - 1, 1), MAX_AUTO_ACTORS))
    lanes = num_actors * actors.groups_per_actor
    computing = num_actors + (2 if pipeline.inference == "server" else 1)
    is_adaptive = _or(
        pipeline.adaptive,
        pipeline.schedule == "async" and pipeline.inference == "server" and pipeline.max_queue_delay_us != 0,
    )
    most = _or(learner.max_batch_fragments, max(lanes, _or(learner.min_batch_fragments, 1)))
    threads = _or(learner.num_threads, max(1, cores // computing))
    values: dict[str, Any] = {
        "run.code_dir": str(Path.cwd()) if config.run.code_dir == "auto" else config.run.code_dir,
        "actors.num_actors": num_actors,
        "pipeline.num_slots": _or(pipeline.num_slots, 3 * lanes),
        "pipeline.max_batch_size": _or(pipeline.max_batch_size, lanes * actors.envs_per_group),
        "pipeline.adaptive": is_adaptive,
        "pipeline.max_queue_delay_us": _or(pipeline.max_queue_delay_us, ADAPTIVE_DELAY_US if is_adaptive else 0),
        "actors.env_threads": _or(actors.env_threads, max(1, (cores - threads) // num_actors)),
        "learner.num_threads": threads,
        "learner.min_batch_fragments": _or(learner.min_batch_fragments, min(max(1, lanes // 2), most)),
        "learner.max_batch_fragments": most,
        "replay.updates_per_env_step": _or(
            config.replay.updates_per_env_step, 0.25 if config.algo.name == "dqn" else 1.0
        ),
        "checkpoint.every_s": 120.0 if config.checkpoint.every_env_steps is None else None,
        "log.every_env_steps": _or(config.log.every_env_steps, max(1, config.run.total_env_steps // 200)),
    }
    return {path: value for path, value in values.items() if _get(config, path) == "auto"}


def check_size(config: Config, derived: Mapping[str, int]) -> list[str]:
    """Return a message when the trajectories in memory are more than any machine holds.

    Comes before `apply`: only below this size are all derived values within their own limits.
    """
    actors, steps, envs = config.actors, config.pipeline.fragment_length, config.actors.envs_per_group
    num_actors = _or(actors.num_actors, derived.get("actors.num_actors", 0))
    lanes = num_actors * actors.groups_per_actor
    slots = max(_or(config.pipeline.num_slots, derived.get("pipeline.num_slots", 0)), lanes)
    rows = slots * envs * steps
    if rows <= LARGEST_RING_ROWS:
        return []
    return [
        f"pipeline.num_slots = {slots} x actors.envs_per_group = {envs} x pipeline.fragment_length = {steps} makes "
        f"{rows:_} rows (env steps) of trajectories in memory. Accepted: at most {LARGEST_RING_ROWS:_}. Make one of "
        f"them smaller, or the {lanes} env groups fewer (actors.num_actors = {num_actors} x actors.groups_per_actor = "
        f"{actors.groups_per_actor})."
    ]


def apply(config: Config, values: Mapping[str, int | float | str | None]) -> Config:
    """Return the configuration with other values of some options."""
    tables = config.model_dump()
    for path, value in values.items():
        section, key = path.split(".")
        tables[section][key] = value
    return config_from_dict(tables)


def check(config: Config, source: Source) -> list[str]:
    """Return one message for each broken rule between options."""
    problems: list[str] = []
    rules = (
        _check_ring, _check_batcher, _check_batches, _check_minibatches, check_replay, check_factories, check_model,
        _check_pinning,
    )
    for rule in rules:
        problems += rule(config, lambda path: f"{path} = {show(_get(config, path))}{source.place(path)}")
    return problems


def unused(config: Config, source: Source) -> list[str]:
    """Return one sentence for each setting that was made and has no effect beside the others."""
    groups: list[tuple[bool, list[str], str]] = [
        (
            config.pipeline.inference == "local",
            ["pipeline." + name for name in SERVER_OPTIONS],
            'pipeline.inference = "local" has no server that batches',
        ),
        (
            config.server_device() == "cpu",
            ["pipeline.cuda_graphs"],
            "the inference server runs on the CPU",
        ),
        (
            config.pipeline.schedule != "async",
            ["pipeline.max_policy_lag", "learner.min_batch_fragments", "learner.max_batch_fragments"],
            f'pipeline.schedule = "{config.pipeline.schedule}" has a fixed lag and fixed batches',
        ),
        (
            config.eval.every_env_steps is None,
            ["eval.episodes", "eval.num_envs", "eval.stochastic"],
            "eval.every_env_steps is none",
        ),
        (
            config.model.kind in BUILT_IN_MODELS,
            ["model.kwargs"],
            f'model.kind = "{config.model.kind}" is built in and takes none',
        ),
        (
            config.algo.chosen.policy != "actor_critic",
            ["model.separate_critic", "model.action_distribution", "model.initial_log_std"],
            f'algo.name = "{config.algo.name}" decides that itself',
        ),
        (
            config.algo.name == "dqn" and config.model.kind not in BUILT_IN_MODELS,
            ["algo.dqn.dueling"],
            f'model.kind = "{config.model.kind}" is your own network, which says what its streams are',
        ),
        (
            not config.algo.sac.learn_temperature,
            ["algo.sac.target_entropy"],
            "algo.sac.learn_temperature is false",
        ),
        (
            config.pipeline.adaptive is True and config.pipeline.schedule != "async",
            ["pipeline.adaptive", "pipeline.max_queue_delay_us"],
            f'pipeline.schedule = "{config.pipeline.schedule}" is to be the same each time, and a delay that adapts '
            "never is",
        ),
        (
            config.pipeline.max_queue_delay_us == 0 and config.pipeline.adaptive is True,
            ["pipeline.adaptive"],
            "pipeline.max_queue_delay_us = 0 leaves no wait to shorten",
        ),
        *unused_options(config),
    ]
    plain = _plain(config)
    told: dict[str, str] = {}
    for applies, paths, reason in groups:
        for path in paths:
            if applies and path in source.origins and _get(config, path) != plain.get(path):
                told.setdefault(path, f"{path}{source.place(path)} is not used: {reason}.")
    return list(told.values())


def _plain(config: Config) -> dict[str, object]:
    """What each option that may go unused is when nobody sets it; a resolved file says nothing by stating it."""
    unset = apply(config, {path: "auto" for path in AUTO_IF_UNUSED})
    defaults = Config.model_validate({"env": {"id": config.env.id}})
    plain: dict[str, object] = {path: _get(defaults, path) for path, _ in leaves()}
    return plain | derive(unset)


def _or(value: Number | str, derived: Number) -> Number:
    return derived if isinstance(value, str) else value


def _get(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _lanes(config: Config) -> tuple[int, str]:
    """Number of env groups, and how it comes about."""
    actors, groups = _get(config, "actors.num_actors"), config.actors.groups_per_actor
    lanes = actors * groups
    return lanes, f"{lanes} env groups (actors.num_actors = {actors} x actors.groups_per_actor = {groups})"


def _check_ring(config: Config, say: Say) -> list[str]:
    problems = []
    lanes, explained = _lanes(config)
    schedule = config.pipeline.schedule
    is_async = schedule == "async"
    needed = lanes + 1 if is_async else 2 * lanes
    if _get(config, "pipeline.num_slots") < needed:
        why = "one for each and one to hand over" if is_async else "two for each: one is filled, one trained on"
        problems.append(
            f'{say("pipeline.num_slots")} is too small for {explained} with pipeline.schedule = "{schedule}". '
            f"Accepted: at least {needed} ({why}), or auto for {3 * lanes}."
        )
    if config.pipeline.when_full == "overwrite_oldest" and not is_async:
        problems.append(
            f'{say("pipeline.when_full")} needs pipeline.schedule = "async": "{schedule}" trains on every fragment. '
            'Accepted with it: "block".'
        )
    return problems


def _check_batcher(config: Config, say: Say) -> list[str]:
    pipeline, rows = config.pipeline, config.actors.envs_per_group
    if pipeline.inference == "local":
        return []
    problems = []
    largest = _get(config, "pipeline.max_batch_size")
    if largest < rows:
        problems.append(
            f"{say('pipeline.max_batch_size')} cannot hold one request of actors.envs_per_group = {rows} rows. "
            f"Accepted: at least {rows}, or auto for all rows."
        )
    for size in pipeline.preferred_batch_sizes:
        if size > largest:
            problems.append(
                f"{say('pipeline.preferred_batch_sizes')}: {size} is never reached, as "
                f"pipeline.max_batch_size = {largest}. Accepted: sizes up to that."
            )
        elif size < rows:
            problems.append(
                f"{say('pipeline.preferred_batch_sizes')}: {size} is less than one request of "
                f"actors.envs_per_group = {rows} rows. Accepted: sizes from that on."
            )
    return problems


def _check_pinning(config: Config, say: Say) -> list[str]:
    if not config.pipeline.pin_cores or can_pin():
        return []
    return [
        f"{say('pipeline.pin_cores')} needs a system that keeps processes on chosen cores (sched_setaffinity, Linux); "
        "this one cannot. Accepted here: false."
    ]


def _check_batches(config: Config, say: Say) -> list[str]:
    if config.pipeline.schedule != "async":
        return []
    problems = []
    least, most = _get(config, "learner.min_batch_fragments"), _get(config, "learner.max_batch_fragments")
    slots = _get(config, "pipeline.num_slots")
    if least > most:
        problems.append(
            f"{say('learner.min_batch_fragments')} is above learner.max_batch_fragments = {most}. "
            f"Accepted: at most {most}."
        )
    for path, value in (("learner.min_batch_fragments", least), ("learner.max_batch_fragments", most)):
        if value > slots:
            problems.append(
                f"{say(path)} needs {value} slots, but pipeline.num_slots = {slots}. "
                f"Accepted: at most {slots}, or a larger ring."
            )
    return problems


def _check_minibatches(config: Config, say: Say) -> list[str]:
    algo = config.algo.chosen
    if not isinstance(algo, PpoConfig | AppoConfig):
        return []
    is_async = config.pipeline.schedule == "async"
    fragments = _get(config, "learner.min_batch_fragments") if is_async else _lanes(config)[0]
    columns = fragments * config.actors.envs_per_group
    by_rows = config.algo.name == "ppo" and algo.epochs > 1
    parts = columns * config.pipeline.fragment_length if by_rows else columns
    if algo.num_minibatches <= parts:
        return []
    unit = "rows (env steps)" if by_rows else "whole env columns"
    return [
        f"{say(f'algo.{config.algo.name}.num_minibatches')} is more than the {parts} {unit} of "
        f"{'the smallest' if is_async else 'a'} batch. Accepted: at most {parts}, or more envs."
    ]
