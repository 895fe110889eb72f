"""Steps one env with random actions and notes what it returned, for the findings in `contract.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rltrain.envs.boundary import flatten_obs
from rltrain.envs.outside import outside_leaves
from rltrain.envs.report import Note

MAX_STEPS = 1000
MAX_SECONDS = 3.0
MAX_KEPT = 64


@dataclass
class Ends:
    """How episodes ended; one that ended both ways counts in all three."""

    terminated: int = 0
    truncated: int = 0
    both: int = 0

    def add(self, terminated: Any, truncated: Any) -> None:
        """Count one step, or one of each env for arrays [N]."""
        self.terminated += int(np.sum(terminated))
        self.truncated += int(np.sum(truncated))
        self.both += int(np.sum(np.logical_and(terminated, truncated)))

    def join(self, other: Ends) -> None:
        """Add the counts of another."""
        self.terminated += other.terminated
        self.truncated += other.truncated
        self.both += other.both


@dataclass
class Probe:
    """What one env returned over at most `MAX_STEPS` steps."""

    leaves: list[list[np.ndarray]] = field(default_factory=list)
    """For each leaf, copies of its first `MAX_KEPT` observations."""
    outside: dict[str, str] = field(default_factory=dict)
    """For each leaf that was outside its space, what was wrong when it first was, in words."""
    shares_memory: bool = False
    """Whether an array that was returned was also returned before, or changed by a later call."""
    rewards: list[Any] = field(default_factory=list)
    """The rewards as returned."""
    flag_types: set[str] = field(default_factory=set)
    infos_missing: bool = False
    lengths: list[int] = field(default_factory=list)
    """Lengths of the episodes that ended, in env steps."""
    ends: Ends = field(default_factory=Ends)
    step_us: list[float] = field(default_factory=list)
    """Duration of each step in microseconds."""


def probe(env: gymnasium.Env, found: Probe, note: Note, seed: int = 0) -> None:
    """Reset and step `env` and note in `found` what it returns; exceptions of the env pass."""
    env.action_space.seed(seed)
    note("first reset")
    obs, info = env.reset(seed=seed)
    previous, previous_values = _note_obs(found, env, obs, None, [])
    found.infos_missing |= info is None
    length = 0
    deadline = time.perf_counter() + MAX_SECONDS
    for _ in range(MAX_STEPS):
        action = env.action_space.sample()
        note("step")
        start = time.perf_counter()
        obs, reward, terminated, truncated, info = env.step(action)
        now = time.perf_counter()
        found.step_us.append((now - start) * 1e6)
        found.rewards.append(reward)
        found.flag_types |= {type(terminated).__name__, type(truncated).__name__}
        found.infos_missing |= info is None
        previous, previous_values = _note_obs(found, env, obs, previous, previous_values)
        length += 1
        if terminated or truncated:
            found.lengths.append(length)
            found.ends.add(bool(terminated), bool(truncated))
            length = 0
            note("reset")
            obs, _ = env.reset()
            previous, previous_values = _note_obs(found, env, obs, previous, previous_values)
        if now > deadline:
            break


def first_obs(env: gymnasium.Env, seed: int, note: Note) -> list[np.ndarray]:
    """Return copies of the leaves of the observation after a reset with `seed` and one fixed action."""
    note("reset")
    obs, _ = env.reset(seed=seed)
    leaves = [leaf.copy() for leaf in flatten_obs(env.observation_space, obs)]
    env.action_space.seed(0)
    note("step")
    obs, *_ = env.step(env.action_space.sample())
    return leaves + [leaf.copy() for leaf in flatten_obs(env.observation_space, obs)]


def _note_obs(
    found: Probe, env: gymnasium.Env, obs: Any, previous: list[np.ndarray] | None, previous_values: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Note one observation, and whether the one before it has changed or lies in the same memory."""
    space = env.observation_space
    if not space.contains(obs):
        found.outside = {**outside_leaves(space, obs), **found.outside}
    leaves = flatten_obs(space, obs)
    if previous is not None:
        for new, old, old_value in zip(leaves, previous, previous_values, strict=True):
            is_same = new.size > 0 and np.shares_memory(new, old)
            found.shares_memory |= is_same or not np.array_equal(old, old_value, equal_nan=old.dtype.kind == "f")
    values = [leaf.copy() for leaf in leaves]
    found.leaves = found.leaves or [[] for _ in leaves]
    for kept, value in zip(found.leaves, values, strict=True):
        if len(kept) < MAX_KEPT:
            kept.append(value)
    return leaves, values
