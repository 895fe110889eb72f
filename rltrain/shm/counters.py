"""Counter board: one row of 64-bit words per process, written by that process alone, read by the supervisor.

Owns: the region `counters` of the arena.
Written by: each worker, its own row only; the supervisor, the row of a dead one.
Read by: the supervisor, which takes differences between two reads.
Blocks on: nothing. Unblocked by: nothing.
If the peer dies: the row keeps its last values; a restarted worker adds on to them.

Words are naturally aligned and single-writer, so plain 8-byte stores suffice: a reader may see one word of an
older moment than another, never a torn word.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rltrain.shm.arena import Arena

STATES: dict[str, tuple[str, ...]] = {
    "actor": ("boot", "env_step", "write", "wait_action", "wait_slot", "wait_weights", "forward", "load_weights"),
    "inference": ("boot", "wait_request", "batch_delay", "gather", "h2d", "forward", "d2h", "reply",
                  "load_weights"),
    "learner": ("boot", "wait_data", "h2d", "sample", "update", "publish", "checkpoint"),
    "evaluator": ("boot", "wait_work", "env_step"),
}
"""The named states of each role; a process is always in exactly one, and their times sum to its wall time. `boot` also
holds the time in which it was dead."""

FIRE_REASONS = ("full", "preferred", "delay", "all_waiting")
"""Why the inference server fires a batch, see `inference.batcher`."""

COUNTERS: dict[str, tuple[str, ...]] = {
    "actor": ("env_steps", "episodes", "fragments", "restarts"),
    "inference": (
        "batches", "rows", "padded_rows", *(f"fired_{reason}" for reason in FIRE_REASONS), "policy_version", "restarts",
    ),
    "learner": (
        "env_steps", "updates", "batches", "fragments", "policy_version", "episodes", "return_mean", "length_mean",
        "longest_open", "dropped_env_steps", "bad_updates", "copy_ns", "sample_ns", "replay_size", "restarts",
    ),
    "evaluator": ("evaluations", "episodes", "env_steps", "restarts"),
}
"""The counters of each role. All are sums since the start of the process's first life, but for `policy_version`,
`return_mean`, `length_mean`, `longest_open` and `replay_size`, which are the present value. `return_mean` is NaN until
an episode has ended; `longest_open` is the length of the longest episode that has not."""

HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "actor": ("episode_length_steps",),
    "inference": ("batch_size_rows", "queue_delay_us", "service_us"),
    "learner": ("policy_lag_versions", "batch_fragments"),
    "evaluator": (),
}

NUM_BINS = 96
BIN_EDGES = np.concatenate([np.arange(0, 16), 16 * 2.0 ** (np.arange(1, NUM_BINS - 15) / 4)])
"""Lower edges of the histogram bins: whole numbers up to 16, then four bins for each doubling (to 1.8e7)."""

_MAX_STATES, _MAX_COUNTERS, _MAX_HISTOGRAMS = 12, 24, 4
_STEPPING_AT, _STEPPING_WORDS = 5, 5
_STATE_AT = 10
"""Before it: pid, heartbeat_ns, state, state_since_ns, number of lives, and the five words of `stepping`."""
_COUNTER_AT = _STATE_AT + _MAX_STATES
_HISTOGRAM_AT = _COUNTER_AT + _MAX_COUNTERS
ROW_WORDS = _HISTOGRAM_AT + _MAX_HISTOGRAMS * NUM_BINS
ROW_BYTES = -(-ROW_WORDS * 8 // 64) * 64
"""Distance between two rows: whole cache lines, since each row has another writer."""


class CounterRow:
    """One process's row.

    Args:
        words: int64 [ROW_WORDS], the row in shared memory.
        role: `actor`, `inference`, `learner` or `evaluator`.
    """

    def __init__(self, words: np.ndarray, role: str):
        self._words = words
        self._floats = words.view(np.float64)
        self.role = role
        self._state_index = {name: i for i, name in enumerate(STATES[role])}
        self._counter_at = {name: _COUNTER_AT + i for i, name in enumerate(COUNTERS[role])}
        self._histogram_at = {name: _HISTOGRAM_AT + i * NUM_BINS for i, name in enumerate(HISTOGRAMS[role])}
        self._state = 0
        self._since = 0

    def start(self, pid: int) -> None:
        """Take the row for this process, in state `boot`; a restarted worker keeps the sums it finds."""
        now = self._begin_boot()
        self._words[0], self._words[1] = pid, now
        self._words[4] += 1
        self._state, self._since = 0, now

    def end(self) -> None:
        """Put the row of a dead process into `boot`, until another one starts; called by the supervisor."""
        self._begin_boot()

    def _begin_boot(self) -> int:
        now, words = time.monotonic_ns(), self._words
        if words[3]:
            words[_STATE_AT + words[2]] += now - words[3]
        words[2], words[3] = 0, now
        return now

    def enter(self, state: str) -> int:
        """Leave the present state for `state`, adding the time spent; returns the time in ns of CLOCK_MONOTONIC.

        Also the heartbeat. About 0.5 us.
        """
        now = time.monotonic_ns()
        words = self._words
        words[_STATE_AT + self._state] += now - self._since
        index = self._state_index[state]
        self._state, self._since = index, now
        words[2], words[3], words[1] = index, now, now
        return now

    def beat(self) -> None:
        """Say that the process lives; called in every wait that times out."""
        self._words[1] = time.monotonic_ns()

    def add(self, counter: str, amount: int | float = 1) -> None:
        """Add to a counter. Counters are float64, exact up to 2**53."""
        self._floats[self._counter_at[counter]] += amount

    def set(self, counter: str, value: float) -> None:
        """Set a counter that is a present value."""
        self._floats[self._counter_at[counter]] = value

    def observe(self, histogram: str, value: float, count: int = 1) -> None:
        """Count `value`, >= 0, in a histogram."""
        at = self._histogram_at[histogram]
        self._words[at + _bin_of(value)] += count

    def observe_all(self, histogram: str, values: np.ndarray) -> None:
        """Count every one of `values`, [n], >= 0."""
        at = self._histogram_at[histogram]
        bins = np.clip(np.searchsorted(BIN_EDGES, values, side="right") - 1, 0, NUM_BINS - 1)
        self._words[at : at + NUM_BINS] += np.bincount(bins, minlength=NUM_BINS)

    @property
    def stepping(self) -> memoryview:
        """What an actor steps just now, five int64 words written by its loop and read once it has died.

        env_index  of the env in the whole run; of a vector env, of its first
        num_envs   stepped at once: 1, or the size of the vector env
        env_steps  number of the step within this life of the env, counted from 1; 0 for a reset
        slot, step the row of the ring with the actions
        """
        return self._words[_STEPPING_AT : _STEPPING_AT + _STEPPING_WORDS].data

    # -- reading (supervisor) ---------------------------------------------------------------------------------

    def get(self, counter: str) -> float:
        """Return a counter's value."""
        return float(self._floats[self._counter_at[counter]])

    @property
    def pid(self) -> int:
        """Pid of the process that has the row, 0 before the first start."""
        return int(self._words[0])

    @property
    def num_lives(self) -> int:
        """How many processes have had the row so far."""
        return int(self._words[4])

    @property
    def state(self) -> str:
        """The state the process is in."""
        return STATES[self.role][int(self._words[2])]

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the process last said that it lives; 0 before the first start."""
        beat = int(self._words[1])
        return (time.monotonic_ns() - beat) / 1e9 if beat else 0.0

    def waits_since(self, state: str, since_ns: int) -> bool:
        """Return whether the process is in `state` and entered it after `since_ns` (CLOCK_MONOTONIC)."""
        entered_ns = int(self._words[3])  # read before the state, which is written before it
        return self.state == state and entered_ns > since_ns

    def state_ns(self, is_running: bool = True) -> dict[str, int]:
        """Return the nanoseconds spent in each state, the present one included unless the process has ended."""
        times = {name: int(self._words[_STATE_AT + i]) for i, name in enumerate(STATES[self.role])}
        since = int(self._words[3])
        if since and is_running:
            times[self.state] += max(0, time.monotonic_ns() - since)
        return times

    def counters(self) -> dict[str, float]:
        """Return all counters by name."""
        return {name: float(self._floats[at]) for name, at in self._counter_at.items()}

    def histogram(self, name: str) -> np.ndarray:
        """Return a copy of a histogram's counts, int64 [NUM_BINS]; bin i starts at BIN_EDGES[i]."""
        at = self._histogram_at[name]
        return self._words[at : at + NUM_BINS].copy()


class CounterBoard:
    """The counter rows of an arena.

    Concurrency: each row has one writing process; any process may read any row.
    """

    def __init__(self, arena: Arena):
        self._roles = arena.layout.roles
        self._rows = arena.view("counters", "int64", (len(self._roles), ROW_BYTES // 8))

    def row(self, index: int) -> CounterRow:
        """Return the row of a process, with the role that the layout gives it."""
        return CounterRow(self._rows[index, :ROW_WORDS], self._roles[index])


def _bin_of(value: float) -> int:
    if value < 16:
        return max(0, int(value))
    return min(NUM_BINS - 1, int(np.searchsorted(BIN_EDGES, value, side="right")) - 1)


def quantile(counts: np.ndarray, q: float) -> float | None:
    """Return the q-quantile of a histogram, or None when it is empty.

    Args:
        counts: int64 [NUM_BINS], as `CounterRow.histogram` returns it, or a difference of two.
        q: in [0, 1].

    Returns:
        The lower edge of the bin that holds the quantile: exact below 16, at most 19 % low above.
    """
    total = int(counts.sum())
    if total == 0:
        return None
    at = int(np.searchsorted(np.cumsum(counts), max(1, np.ceil(q * total))))
    return float(BIN_EDGES[at])
