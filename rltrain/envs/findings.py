"""Findings about one env, drawn from what a probe of it returned."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
from gymnasium import spaces

from rltrain.envs.boundary import walk_leaves
from rltrain.envs.probe import Probe, first_obs
from rltrain.envs.report import Finding, Note
from rltrain.envs.values import BadValueError, as_reward

LARGE_IMAGE_PIXELS = 96 * 96
WIDE_RANGE = 10.0
LARGE_REWARD = 100.0
SLOW_STEP_US = 1000.0


def findings_of(env: dict, single: gymnasium.Env, found: Probe, note: Note) -> Iterator[Finding]:
    """Yield all findings about one env.

    Args:
        env: its env section.
        single: the env itself, for its spaces and for resets with chosen seeds.
        found: what a probe of it returned, perhaps not to its end: the env may have raised.
        note: told of each call of the env.
    """
    yield from _observations(env, single, found)
    if found.rewards:
        yield from _aliasing(found)
        yield from _rewards(env, found)
        yield from _flags(found)
        yield from _episodes(single, found)
        yield from _speed(found)
    yield from _seeding(single, note)


def _observations(env: dict, single: gymnasium.Env, found: Probe) -> Iterator[Finding]:
    for reason in found.outside.values():
        yield Finding("warning", "observations", f"{reason} Correct the observation or `observation_space`.")
    if found.leaves and not found.outside:
        yield Finding("ok", "observations", "all observations seen lie within the space")
    for (path, space), values in zip(walk_leaves(single.observation_space), found.leaves, strict=False):
        name = ".".join(("obs", *(str(key) for key in path)))
        if all(value.shape == space.shape and value.dtype.kind in "fiub" for value in values):
            yield from _leaf(env, name, space, np.array(values))


def _leaf(env: dict, name: str, space: spaces.Space, values: np.ndarray) -> Iterator[Finding]:
    flat = values.reshape(len(values), -1)
    if len(flat) > 1 and flat.shape[1] and (flat == flat[0]).all():
        yield Finding(
            "warning", "constant", f"{name} had the same value in all {len(flat)} observations kept. A policy cannot "
            "learn from it. Look whether step() updates what it returns, or leave the entry out.",
        )  # fmt: skip
    if not isinstance(space, spaces.Box):
        return
    if space.dtype == np.uint8 and len(space.shape) >= 2:
        height, width = space.shape[-3:-1] if space.shape[-1] in (1, 3, 4) else space.shape[-2:]
        if height * width > LARGE_IMAGE_PIXELS:
            yield Finding(
                "warning", "images", f"{name} is {height} x {width} pixels; 84 x 84 is usually enough and takes "
                f"{height * width / 84**2:.1f} times less memory, copying and computing. Set env.resize = [84, 84].",
            )  # fmt: skip
    elif space.dtype.kind == "f" and not env["normalize_obs"] and np.abs(flat).max(initial=0.0) > WIDE_RANGE:
        yield Finding(
            "warning", "ranges", f"{name} reaches {np.abs(flat).max():.3g} and networks learn slowly from inputs far "
            "from [-1, 1]. Set env.normalize_obs = true, or scale it in the environment.",
        )  # fmt: skip
    if space.dtype == np.float64:
        yield Finding("ok", "dtype", f"{name} is float64; it takes twice the memory of float32 and is computed in that")


def _aliasing(found: Probe) -> Iterator[Finding]:
    if found.shares_memory:
        yield Finding(
            "warning", "aliasing", "Observations share memory with earlier ones, or earlier ones change later. Here "
            "each is copied at once, so training is right; other code that keeps them would see wrong values.",
        )  # fmt: skip
    else:
        yield Finding("ok", "aliasing", "every observation is an array of its own")


def _rewards(env: dict, found: Probe) -> Iterator[Finding]:
    try:
        values = [as_reward(reward) for reward in found.rewards]
    except BadValueError as error:
        yield Finding("error", "rewards", f"Training stops: {error}")
        return
    if len(set(values)) == 1:
        yield Finding(
            "ok", "rewards", f"every reward was {values[0]:g}; with random actions the policy then only learns from "
            "how long episodes last",
        )  # fmt: skip
    elif max(map(abs, values)) > LARGE_REWARD and not (env["normalize_reward"] or env["reward_clip"]):
        yield Finding(
            "warning", "rewards", f"Rewards reach {max(values, key=abs):.4g}; values of that size make the value loss "
            "dominate. Set env.normalize_reward = true.",
        )  # fmt: skip
    else:
        yield Finding("ok", "rewards", f"between {min(values):g} and {max(values):g}")


def _flags(found: Probe) -> Iterator[Finding]:
    strange = found.flag_types - {"bool", "bool_"}
    if strange:
        types = ", ".join(sorted(strange))
        yield Finding("warning", "flags", f"`terminated` or `truncated` is of type {types}. Return bool.")
    if found.infos_missing:
        yield Finding("warning", "info", "`info` is None; it is taken as an empty dict. Return a dict.")


def _episodes(single: gymnasium.Env, found: Probe) -> Iterator[Finding]:
    limit = single.spec.max_episode_steps if single.spec is not None else None
    if limit is None and not found.ends.truncated:
        ended = f"{len(found.lengths)} episodes ended by themselves" if found.lengths else "no episode ended"
        yield Finding(
            "warning", "time_limit", f"There is no time limit; in {len(found.step_us)} random steps {ended}. A policy "
            "that gets stuck then never starts again, and no return is reported. Set env.max_episode_steps.",
        )  # fmt: skip
    if found.lengths:
        num, median = len(found.lengths), np.median(found.lengths)
        yield Finding("ok", "episodes", f"random actions: {num} episodes, median {median:g} steps")


def _speed(found: Probe) -> Iterator[Finding]:
    p50, p99 = np.percentile(found.step_us, (50, 99))
    message = f"one step takes {p50:.3g} us (p99 {p99:.3g} us)"
    if p50 > SLOW_STEP_US:
        message += f": one actor makes at most {1e6 / p50:.0f} env steps/s. Use more actors (actors.num_actors)."
    yield Finding("warning" if p50 > SLOW_STEP_US else "ok", "speed", message)


def _seeding(single: gymnasium.Env, note: Note) -> Iterator[Finding]:
    first, again, other = (first_obs(single, seed, note) for seed in (1, 1, 2))
    if not all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)):
        yield Finding(
            "warning", "seeding", "Two resets with the same seed differ, so runs are not reproducible. Draw all "
            "randomness from `self.np_random` and call `super().reset(seed=seed)`.",
        )  # fmt: skip
    elif all(np.array_equal(a, b) for a, b in zip(first, other, strict=True)):
        yield Finding(
            "ok", "seeding", "the same seed gives the same start; so do different seeds: episodes begin alike, and "
            "differ by the actions only",
        )  # fmt: skip
    else:
        yield Finding("ok", "seeding", "the same seed gives the same start, another seed another one")
