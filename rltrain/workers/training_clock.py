"""When training began, whether `run.time_limit_s` is over, and how fast env steps were learned.

Owns: these moments. Used by the learner alone.
"""

from __future__ import annotations

import math
import time


class TrainingClock:
    """Counts from the first update, so that a slow start takes nothing of it: the server may still capture graphs.

    Args:
        seconds: of training; None for no limit.
        longest_start_s: from `attach`; a first update that takes longer is not waited for, the limit begins then.
    """

    def __init__(self, seconds: float | None, longest_start_s: float):
        self._seconds, self._longest_start_s = math.inf if seconds is None else seconds, longest_start_s
        self._over_at_s = math.inf  # monotonic
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def attach(self) -> None:
        """Note that all is there but the first batch."""
        self._over_at_s = time.monotonic() + self._longest_start_s + self._seconds

    def learned(self, env_steps: int) -> None:
        """Note that an update is done, with so many env steps learned from in all."""
        self._last = (time.monotonic(), env_steps)
        if self._first is None:
            self._first = self._last
            self._over_at_s = min(self._over_at_s, self._last[0] + self._seconds)

    @property
    def is_over(self) -> bool:
        """Whether training is to end."""
        return time.monotonic() >= self._over_at_s

    @property
    def env_steps_per_s(self) -> float | None:
        """Env steps learned a second between the ends of the first and the last update; None before there are two."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])
