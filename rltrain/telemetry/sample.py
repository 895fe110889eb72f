"""What the processes did between two moments: plain values, made by the ledger, shown and judged by the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rltrain.telemetry.gpu import GpuSample


@dataclass(frozen=True)
class ProcessSample:
    """One process.

    Args:
        name: such as `actor-3`.
        role: `actor`, `inference`, `learner` or `evaluator`.
        pid: 0 before the first start.
        shares: state -> share of the interval, summing to 1; `boot` alone before the first start; empty when the
            process had ended before the interval began.
        cpu_percent: 100 is one core; None when not known (first look, or no process).
        rss_bytes: resident memory, pages of the arena included; None when not known.
        restarts: since the start.
        silent_s: how long it has given no sign of life; 0 where it has ended or still boots.
        state: that it is in.
    """

    name: str
    role: str
    pid: int
    shares: dict[str, float]
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    restarts: int = 0
    silent_s: float = 0.0
    state: str = "boot"


@dataclass(frozen=True)
class Sample:
    """The whole run over an interval. Figures that were not measured are None.

    Args:
        time_s: seconds since the ledger began.
        interval_s: length of the interval.
        env_steps: learned from in all, resumed parts included.
        env_steps_per_s: over the interval; of the ledger's `sample`, between the last two batches.
        updates: optimiser steps in all.
        updates_per_s: likewise.
        policy_version: weights published in all.
        return_mean: of the last episodes; None before the first has ended.
        episode_length_mean_steps: of the same episodes.
        episodes: ended and learned from in all.
        longest_open_steps: env steps of the longest episode that has not ended, as far as learned from.
        processes: in the order of the counter board.
        ring: slots by state (`free`, `writing`, `ready`, `reading`), mean over the looks in the interval.
        batch_size_mean_rows: rows of an inference batch.
        padding_share: part of the rows run that only filled batches up.
        fired_shares: reason -> part of the batches that fired for it; empty without a batch.
        queue_delay_us_p50: wait of a request before its batch fires; also p95 and p99.
        service_us_p50: from firing a batch to its replies; also p95.
        policy_lag_p50: versions between collecting and learning; also p99.
        dropped_env_steps: dropped for their age, in all.
        overwritten_fragments: published and thrown away again by `when_full = "overwrite_oldest"`, in all.
        bad_updates: skipped as not finite, in all.
        replay_transitions: in the replay that may be drawn; None without one.
        sample_share: share of the interval in which batches were drawn from the replay, hidden or not; None without.
        copy_share: share of the interval in which the prefetch thread made batches, hidden or not.
        histograms: metric name -> int64 [NUM_BINS], counts of the interval.
        gpus: one for each NVIDIA GPU; empty without.
    """

    time_s: float
    interval_s: float
    env_steps: int
    env_steps_per_s: float
    updates: int
    updates_per_s: float
    policy_version: int
    return_mean: float | None
    episode_length_mean_steps: float | None
    episodes: int
    processes: tuple[ProcessSample, ...]
    ring: dict[str, float] = field(default_factory=dict)
    batch_size_mean_rows: float | None = None
    padding_share: float | None = None
    fired_shares: dict[str, float] = field(default_factory=dict)
    queue_delay_us_p50: float | None = None
    queue_delay_us_p95: float | None = None
    queue_delay_us_p99: float | None = None
    service_us_p50: float | None = None
    service_us_p95: float | None = None
    policy_lag_p50: float | None = None
    policy_lag_p99: float | None = None
    dropped_env_steps: int = 0
    overwritten_fragments: int = 0
    bad_updates: int = 0
    longest_open_steps: int = 0
    replay_transitions: int | None = None
    sample_share: float | None = None
    copy_share: float | None = None
    histograms: dict[str, np.ndarray] = field(default_factory=dict)
    gpus: tuple[GpuSample, ...] = ()

    @property
    def restarts(self) -> int:
        """Restarts of all processes since the start."""
        return sum(process.restarts for process in self.processes)

    @property
    def updates_per_env_step(self) -> float | None:
        """The replay ratio that was reached; None while nothing came or without a replay."""
        if self.replay_transitions is None or not self.env_steps_per_s:
            return None
        return self.updates_per_s / self.env_steps_per_s

    @property
    def has_long_episode(self) -> bool:
        """Whether an episode goes on for more than twice the length of those that ended, or none has ended."""
        return self.longest_open_steps > 2 * (self.episode_length_mean_steps or 0)

    def of_role(self, role: str) -> list[ProcessSample]:
        """Return the processes of a role that the interval knows something of."""
        return [process for process in self.processes if process.role == role and process.shares]

    def role_shares(self, role: str) -> dict[str, float]:
        """Return state -> share, mean over the role's processes; empty when there are none."""
        processes = self.of_role(role)
        states = dict.fromkeys(state for process in processes for state in process.shares)
        return {state: sum(p.shares.get(state, 0.0) for p in processes) / len(processes) for state in states}


NO_SAMPLE = Sample(
    time_s=0.0, interval_s=0.0, env_steps=0, env_steps_per_s=0.0, updates=0, updates_per_s=0.0, policy_version=0,
    return_mean=None, episode_length_mean_steps=None, episodes=0, processes=(),
)
"""Of a run that nothing is known of."""
