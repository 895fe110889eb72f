"""What every driver of a peer has in common: its job, and the figures that it prints as one JSON line.

A driver is started with one argument, a JSON object:

    work        "cartpole" or "pong"
    to_target   false: as many env steps as it can, one pass over the data; true: until the mean return is `target`
    seconds     measured, from the end of the first update on, as rltrain measures itself
    limit_s     longest time to the target, from `began`
    began       `time.time()` at the start of the process
    seed        of everything
    target      mean return of the last 100 episodes
    fragment_length, num_minibatches    env steps of each env in a batch, parts of it; not `to_target`

and what its settings add: `num_envs`, `threads` and so on. It trains through the library's own public interface and
calls `Meter.learned` after every update. Imports nothing but the standard library: it runs where rltrain is not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def read_job() -> dict[str, Any]:
    """Return the job that the command line names."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    return job


class Meter:
    """Counts env steps learned from, and knows when it is enough.

    Args:
        job: see the module.
    """

    def __init__(self, job: dict[str, Any]):
        self._job = job
        self._since: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._first_update_s: float | None = None
        self._seconds_to_target: float | None = None

    def learned(self, env_steps: int, return_mean: float | None = None) -> bool:
        """Note that an update is done.

        Args:
            env_steps: learned from so far.
            return_mean: of the last 100 episodes; None where there are none yet.

        Returns:
            Whether to stop.
        """
        now, elapsed_s = time.perf_counter(), time.time() - self._job["began"]
        self._last = (now, env_steps)
        if self._since is None:
            self._since, self._first_update_s = self._last, elapsed_s
        if self._job["to_target"]:
            if return_mean is not None and return_mean >= self._job["target"]:
                self._seconds_to_target = elapsed_s
            return self._seconds_to_target is not None or elapsed_s >= self._job["limit_s"]
        return self._since[1] < env_steps and now - self._since[0] >= self._job["seconds"]

    def report(self) -> None:
        """Print what was measured as one JSON line."""
        rate = None
        if self._since is not None and self._last is not None and self._last[0] > self._since[0]:
            rate = (self._last[1] - self._since[1]) / (self._last[0] - self._since[0])
        figures = {
            "env_steps_per_s": rate,
            "first_update_s": self._first_update_s,
            "seconds_to_target": self._seconds_to_target,
            "env_steps": self._last[1] if self._last else 0,
        }
        print("\n" + json.dumps(figures), flush=True)

    def finish(self) -> None:
        """Report and end the process at once: how long a library takes to close is not measured."""
        self.report()
        os._exit(0)
