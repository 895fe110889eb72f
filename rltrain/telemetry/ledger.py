"""The idle ledger: reads every process's counter row and turns differences between two looks into a sample.

Called by the supervisor alone, about every second. Nothing here waits; a process that dies keeps its last values.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rltrain.shm.counters import FIRE_REASONS, HISTOGRAMS, NUM_BINS, CounterRow, quantile
from rltrain.telemetry.gpu import GpuMonitor
from rltrain.telemetry.processes import ProcessTable
from rltrain.telemetry.sample import ProcessSample, Sample

WINDOW_S = 10.0
"""Length of the steady window that the verdict looks at."""

_HISTOGRAM_METRICS = {
    "batch_size_rows": "inference/batch_size_rows",
    "queue_delay_us": "inference/queue_delay_us",
    "service_us": "inference/service_us",
    "policy_lag_versions": "lag/policy_lag_versions",
    "batch_fragments": "lag/batch_fragments",
    "episode_length_steps": "rollout/episode_length_steps",
}


@dataclass(frozen=True)
class _Look:
    """All rows at one moment."""

    at_s: float
    pids: list[int]
    state_ns: list[dict[str, int]]
    counters: list[dict[str, float]]
    histograms: list[dict[str, np.ndarray]]
    ring: dict[str, int]


class _Pace:
    """Speed of a count that may grow more rarely than it is looked at: a batch can take seconds to learn from.

    Args:
        value: of the count at the start.
        at_s: the moment of the start.
    """

    def __init__(self, value: float, at_s: float):
        self._value, self._changed_at_s = value, at_s
        self._gain, self._span_s = 0.0, 1e-9

    def per_s(self, value: float, at_s: float) -> float:
        """Return the speed between the last two changes, less the longer the next one keeps waiting."""
        if value != self._value:
            self._gain, self._span_s = max(0.0, value - self._value), max(at_s - self._changed_at_s, 1e-9)
            self._value, self._changed_at_s = value, at_s
        return self._gain / max(self._span_s, at_s - self._changed_at_s)


class Ledger:
    """Takes looks at the counter board.

    Args:
        rows: name and counter row of each process, in the order of the board.
        ring_states: returns the number of slots in each state.
        gpu_monitor: None makes one.
        resumed_env_steps: env steps of the checkpoint that the run goes on from, so that they do not count as speed.
        resumed_updates: its updates.
        overwritten: returns how many fragments were thrown away unread.
    """

    def __init__(
        self,
        rows: list[tuple[str, CounterRow]],
        ring_states: Callable[[], dict[str, int]],
        gpu_monitor: GpuMonitor | None = None,
        resumed_env_steps: int = 0,
        resumed_updates: int = 0,
        overwritten: Callable[[], int] = lambda: 0,
    ):
        self._rows = rows
        self._ring_states = ring_states
        self._overwritten = overwritten
        self._gpus = gpu_monitor or GpuMonitor()
        self._floor = {"env_steps": float(resumed_env_steps), "updates": float(resumed_updates)}
        self._table = ProcessTable(len(rows))
        self._looks: deque[_Look] = deque()
        self._ring_sum: dict[str, float] = {}
        self._num_looks = 0
        self._first = self._look()
        self._looks.append(self._first)
        self._paces = {name: _Pace(self._learned(name, self._first), self._first.at_s) for name in self._floor}

    def sample(self) -> Sample:
        """Look now and return what happened since the last call; the speeds are those between the last batches."""
        sample = self._between([self._looks[-1], self._take()])
        return replace(sample, env_steps_per_s=self._per_s("env_steps"), updates_per_s=self._per_s("updates"))

    def window(self) -> Sample:
        """Return what happened over the last `WINDOW_S` seconds, up to the last call of `sample`."""
        return self._between(list(self._looks))

    def total(self) -> Sample:
        """Look now and return what happened since the ledger began."""
        self._take()
        total = {state: slots / self._num_looks for state, slots in self._ring_sum.items()}
        return self._between([self._first, self._looks[-1]], ring=total)

    # -- looking ----------------------------------------------------------------------------------------------

    def _take(self) -> _Look:
        look = self._look()
        self._num_looks += 1
        for state, slots in look.ring.items():
            self._ring_sum[state] = self._ring_sum.get(state, 0.0) + slots
        self._looks.append(look)
        # The last look older than the window stays: it is where the window begins.
        while len(self._looks) > 2 and look.at_s - self._looks[1].at_s >= WINDOW_S:
            self._looks.popleft()
        return look

    def _look(self) -> _Look:
        rows = [row for _, row in self._rows]
        pids = [row.pid for row in rows]
        self._table.refresh(pids)
        return _Look(
            at_s=time.monotonic(),
            pids=pids,
            state_ns=[self._state_ns(i, row) for i, row in enumerate(rows)],
            counters=[row.counters() for row in rows],
            histograms=[{name: row.histogram(name) for name in HISTOGRAMS[row.role]} for row in rows],
            ring=dict(self._ring_states()),
        )

    def _state_ns(self, index: int, row: CounterRow) -> dict[str, int]:
        """The row's times; an ended process is in its last state for good, which it never left, but not at work."""
        if row.pid and not self._table.is_alive(index) and self._looks:
            before = self._looks[-1].state_ns[index]
            return {state: max(before[state], ns) for state, ns in row.state_ns(is_running=False).items()}
        return row.state_ns()

    # -- differences ------------------------------------------------------------------------------------------

    def _between(self, looks: list[_Look], ring: dict[str, float] | None = None) -> Sample:
        a, b = looks[0], looks[-1]
        interval_s = max(b.at_s - a.at_s, 1e-9)
        learner = self._present("learner", b)
        has_replay = bool(learner.get("replay_size"))
        histograms = self._histograms(a, b)
        batches, rows, padding = (self._gained("inference", name, a, b) for name in ("batches", "rows", "padded_rows"))
        fired = {reason: self._gained("inference", f"fired_{reason}", a, b) for reason in FIRE_REASONS}
        return Sample(
            time_s=b.at_s - self._first.at_s,
            interval_s=b.at_s - a.at_s,
            env_steps=int(learner.get("env_steps", 0)),
            env_steps_per_s=self._gained("learner", "env_steps", a, b) / interval_s,
            updates=int(learner.get("updates", 0)),
            updates_per_s=self._gained("learner", "updates", a, b) / interval_s,
            policy_version=int(learner.get("policy_version", 0)),
            return_mean=_mean_of_episodes(learner, "return_mean"),
            episode_length_mean_steps=_mean_of_episodes(learner, "length_mean"),
            episodes=int(learner.get("episodes", 0)),
            processes=tuple(self._process(i, a, b) for i in range(len(self._rows))),
            ring=_mean_ring(looks[1:] or looks) if ring is None else ring,
            batch_size_mean_rows=rows / batches if batches else None,
            padding_share=padding / (rows + padding) if rows else None,
            fired_shares={reason: number / batches for reason, number in fired.items()} if batches else {},
            **_quantiles(histograms),
            dropped_env_steps=int(learner.get("dropped_env_steps", 0)),
            overwritten_fragments=self._overwritten(),
            bad_updates=int(learner.get("bad_updates", 0)),
            longest_open_steps=int(learner.get("longest_open", 0)),
            replay_transitions=int(learner["replay_size"]) if has_replay else None,
            sample_share=self._gained("learner", "sample_ns", a, b) / 1e9 / interval_s if has_replay else None,
            copy_share=self._gained("learner", "copy_ns", a, b) / 1e9 / interval_s if learner else None,
            histograms=histograms,
            gpus=self._gpus.read(),
        )

    def _per_s(self, counter: str) -> float:
        now = self._looks[-1]
        return self._paces[counter].per_s(self._learned(counter, now), now.at_s)

    def _learned(self, counter: str, look: _Look) -> float:
        return max(self._floor[counter], self._present("learner", look).get(counter, 0.0))

    def _present(self, role: str, look: _Look) -> dict[str, float]:
        return next((c for (_, row), c in zip(self._rows, look.counters, strict=True) if row.role == role), {})

    def _gained(self, role: str, counter: str, a: _Look, b: _Look) -> float:
        """The counter's growth from a to b, summed over the role."""
        floor = self._floor.get(counter, 0.0)
        return sum(
            max(0.0, after[counter] - max(before[counter], floor))
            for (_, row), before, after in zip(self._rows, a.counters, b.counters, strict=True)
            if row.role == role
        )

    def _histograms(self, a: _Look, b: _Look) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for before, after in zip(a.histograms, b.histograms, strict=True):
            for name, counts in after.items():
                metric = _HISTOGRAM_METRICS[name]
                found[metric] = found.get(metric, np.zeros(NUM_BINS, np.int64)) + (counts - before[name])
        return found

    def _process(self, index: int, a: _Look, b: _Look) -> ProcessSample:
        name, row = self._rows[index]
        # A restarted process begins anew within its row, so a time may come out smaller than it was.
        spent = {s: max(0, ns - a.state_ns[index][s]) for s, ns in b.state_ns[index].items()}
        total = sum(spent.values())
        if b.pids[index] == 0:
            shares = {state: float(state == "boot") for state in spent}
        else:
            shares = {state: ns / total for state, ns in spent.items()} if total else {}
        cpu_percent, rss_bytes = self._table.usage(index)
        restarts = int(b.counters[index].get("restarts", 0))
        state = row.state
        silent_s = row.heartbeat_age_s if state != "boot" and self._table.is_alive(index) else 0.0
        return ProcessSample(name, row.role, b.pids[index], shares, cpu_percent, rss_bytes, restarts, silent_s, state)


def _mean_of_episodes(learner: dict[str, float], counter: str) -> float | None:
    value = learner.get(counter, math.nan)
    return None if math.isnan(value) or not learner.get("episodes") else value


def _mean_ring(looks: list[_Look]) -> dict[str, float]:
    return {state: sum(look.ring[state] for look in looks) / len(looks) for state in looks[-1].ring}


def _quantiles(histograms: dict[str, np.ndarray]) -> dict[str, float | None]:
    empty = np.zeros(NUM_BINS, np.int64)
    queue = histograms.get("inference/queue_delay_us", empty)
    service = histograms.get("inference/service_us", empty)
    lag = histograms.get("lag/policy_lag_versions", empty)
    return {
        "queue_delay_us_p50": quantile(queue, 0.5),
        "queue_delay_us_p95": quantile(queue, 0.95),
        "queue_delay_us_p99": quantile(queue, 0.99),
        "service_us_p50": quantile(service, 0.5),
        "service_us_p95": quantile(service, 0.95),
        "policy_lag_p50": quantile(lag, 0.5),
        "policy_lag_p99": quantile(lag, 0.99),
    }
