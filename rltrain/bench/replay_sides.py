"""What `rltrain bench replay` measures of rltrain itself, the transitions that all sides get, and numpy's limit.

The transitions are those of a vector env whose one episode never ends, so that every row can be drawn; frames are
noise, which no memory can save on. Axis letters: T steps of a fragment, N envs of a group, B drawn at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from rltrain.fields import ACTION, OBS, ActionSpec, EnvSpec, LeafSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore

T, N, NUM_LANES = 32, 16, 2
NUM_FRAGMENTS = 4
"""Different ones; they follow each other without end."""
NUM_ACTIONS = 4
ALPHA, BETA, EPS, DISCOUNT = 0.6, 0.4, 1e-6, 0.99
LARGEST_LIMIT_BYTES = 3 * 10**9
"""Of the array of observations that numpy gathers from: it is not meant to take all memory."""


@dataclass(frozen=True)
class Case:
    """A replay to be measured.

    Args:
        shape: of one observation; the first axis is that of the frames where `frame_stack` > 1.
        dtype: of observations.
        frame_stack: frames of an observation that the next one shares all but one of.
        capacity: transitions.
    """

    shape: tuple[int, ...]
    dtype: str
    frame_stack: int
    capacity: int

    @property
    def obs_bytes(self) -> int:
        """Of one observation as it is learned from."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def drawn_bytes(self) -> int:
        """Of one transition in a batch: both observations, action, return and discount."""
        return 2 * self.obs_bytes + 8 + 4 + 4

    def __str__(self) -> str:
        """Name it for a reader."""
        kept = ", frames kept once by rltrain" if self.frame_stack > 1 else ""
        return f"observations {self.shape} {self.dtype}, capacity {self.capacity:,}{kept}"


class Side(Protocol):
    """One of those that are measured; made empty."""

    label: str
    """For the table, with the version."""

    def insert(self) -> int:
        """Add the next transitions and return how many."""
        ...

    def pair(self, batch_size: int) -> None:
        """Draw a batch with its weights, gather it, and update its priorities."""
        ...


class Transitions:
    """Fragments [T+1, N, ...] that follow each other, the first one after the last.

    Args:
        case: observations.
    """

    def __init__(self, case: Case):
        self.case = case
        rng, period = np.random.default_rng(0), T * NUM_FRAGMENTS
        frames = _noise(rng, (period, N, *case.shape[case.frame_stack > 1 :]), case.dtype)
        self.fragments = []
        for first in range(0, period, T):
            rows = np.arange(first, first + T + 1)
            if case.frame_stack > 1:
                stacks = (rows[:, None] + np.arange(case.frame_stack)) % period
                obs = np.ascontiguousarray(np.moveaxis(frames[stacks], 1, 2))
            else:
                obs = frames[rows % period]
            self.fragments.append({
                OBS: obs,
                ACTION: rng.integers(0, NUM_ACTIONS, (T + 1, N)),
                "reward": rng.standard_normal((T + 1, N), np.float32),
                "terminated": np.zeros((T + 1, N), bool),
                "truncated": np.zeros((T + 1, N), bool),
                "valid": np.ones((T + 1, N), bool),
            })

    def td_error(self, batch_size: int) -> np.ndarray:
        """Errors that a learner might have, float32 [B]."""
        return np.random.default_rng(1).exponential(size=batch_size).astype(np.float32)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 256, shape, dtype)


class Rltrain:
    """The store with its priorities, as the sampler uses them; batches go into the same arrays again and again."""

    label = "rltrain"

    def __init__(self, transitions: Transitions):
        self.layout, self.transitions = layout_of(transitions.case), transitions
        self.store = ReplayStore(self.layout)
        self.priorities = Priorities(self.layout.num_items, ALPHA, EPS, seed=0)
        self._num_inserts = 0
        self._out: dict[int, dict[str, np.ndarray]] = {}
        self._errors: dict[int, np.ndarray] = {}
        self._items: dict[int, list[np.ndarray]] = {}
        self._turn = 0

    def insert(self) -> int:
        """Add a fragment of one lane."""
        lane, index = self._num_inserts % NUM_LANES, self._num_inserts // NUM_LANES
        fragment = self.transitions.fragments[index % NUM_FRAGMENTS]
        entered, left = self.store.insert(lane, fragment, is_continued=index > 0)
        self.priorities.leave(left)
        self.priorities.enter(entered)
        self._num_inserts += 1
        return T * N

    def pair(self, batch_size: int) -> None:
        """Draw, gather and update, all with their weights."""
        out = self._arrays(batch_size)
        draw = self.priorities.sample(batch_size, BETA)
        self.store.gather(draw.items, out)
        out["is_weight"][...] = draw.is_weight
        self.priorities.update(draw.items, draw.generations, self._errors[batch_size])

    def gather(self, batch_size: int) -> None:
        """Gather items drawn at random beforehand."""
        out = self._arrays(batch_size)
        self._turn += 1
        self.store.gather(self._items[batch_size][self._turn % len(self._items[batch_size])], out)

    def _arrays(self, batch_size: int) -> dict[str, np.ndarray]:
        if batch_size not in self._out:
            fields = self.store.batch_fields()
            out = {field.name: np.zeros((batch_size, *field.shape), field.dtype) for field in fields}
            self._out[batch_size] = {**out, "is_weight": np.zeros(batch_size, np.float32)}
            self._errors[batch_size] = self.transitions.td_error(batch_size)
            self._items[batch_size] = random_rows(self.layout.num_items, batch_size)
        return self._out[batch_size]


def layout_of(case: Case) -> ReplayLayout:
    """Return the layout of rltrain's store for a case."""
    leaf = LeafSpec(OBS, "box", case.shape, case.dtype)
    action = ActionSpec("discrete", (), "int64", nvec=(NUM_ACTIONS,), start=(0,))
    spec = EnvSpec("bench", (leaf,), action)
    return ReplayLayout(spec, NUM_LANES, N, case.capacity, T, 1, DISCOUNT, case.frame_stack)


def random_rows(num_rows: int, batch_size: int) -> list[np.ndarray]:
    """Rows of some batches, int64 [B] each; enough of them that none is met again in a cache."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, num_rows, batch_size) for _ in range(max(8, 2**16 // batch_size))]


class NumpyLimit:
    """What numpy alone needs to move the same bytes: `np.take` of random rows into arrays that are there."""

    def __init__(self, transitions: Transitions):
        case = transitions.case
        self.num_rows = min(case.capacity, LARGEST_LIMIT_BYTES // case.obs_bytes)
        self.label = "numpy's gather alone"
        if self.num_rows < case.capacity:
            self.label += f", of {self.num_rows:,}"
        obs = np.empty((self.num_rows, *case.shape), case.dtype)
        rows = np.concatenate([x[OBS][:T].reshape(T * N, *case.shape) for x in transitions.fragments])
        for first in range(0, self.num_rows, len(rows)):
            obs[first : first + len(rows)] = rows[: self.num_rows - first]
        self._sources = [obs, obs, np.zeros(self.num_rows, np.int64), *np.zeros((2, self.num_rows), np.float32)]
        self._targets: dict[int, list[np.ndarray]] = {}
        self._rows: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        self._turn = 0

    def gather(self, batch_size: int) -> None:
        """Move one batch. `clip` is the fastest mode: with `raise` numpy would copy everything twice."""
        if batch_size not in self._targets:
            self._targets[batch_size] = [np.zeros((batch_size, *x.shape[1:]), x.dtype) for x in self._sources]
            rows = random_rows(self.num_rows, batch_size)
            self._rows[batch_size] = [(x, (x + N) % self.num_rows) for x in rows]
        self._turn += 1
        at, behind = self._rows[batch_size][self._turn % len(self._rows[batch_size])]
        for i, (source, target) in enumerate(zip(self._sources, self._targets[batch_size], strict=True)):
            np.take(source, behind if i == 1 else at, axis=0, out=target, mode="clip")
