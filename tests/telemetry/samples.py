"""Hand-made samples and counter rows."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from rltrain.shm.counters import ROW_WORDS, CounterRow
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.sample import ProcessSample, Sample

HEADER = RunHeader("cartpole", "CartPole-v1", "ppo", "overlap", "runs/cartpole-1", 1_000_000, 475.0, "cpu")
RING = {"free": 10, "writing": 2, "ready": 0, "reading": 0}


class Clock:
    """Stands in for the `time` module; a test moves it."""

    now = 100.0

    def monotonic(self) -> float:
        """Return the time that the test set, in seconds."""
        return self.now


def sample(shares: dict[str, dict[str, float]], num_actors: int = 2, **figures) -> Sample:
    """Return ten seconds in which every process of a role spent its time as `shares[role]` says."""
    processes = []
    for role, of_role in shares.items():
        names = [f"actor-{i}" for i in range(num_actors)] if role == "actor" else [role]
        processes += [ProcessSample(name, role, 100, of_role, 50.0, 2**28) for name in names]
    plain = Sample(
        time_s=60.0, interval_s=10.0, env_steps=500_000, env_steps_per_s=201_234.0, updates=4_000, updates_per_s=45.5,
        policy_version=1_000, return_mean=123.4, episode_length_mean_steps=123.0, episodes=77,
        processes=tuple(processes), ring=RING,
    )
    return replace(plain, **figures)


def row(role: str, pid: int | None = None) -> CounterRow:
    """Return a counter row over a plain array, started by this process."""
    made = CounterRow(np.zeros(ROW_WORDS, np.int64), role)
    made.start(os.getpid() if pid is None else pid)
    return made
