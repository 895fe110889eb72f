"""`run.time_limit_s`: when it begins and whether it is over.

Owns: the moment at which it is over. Used by the learner alone.
"""

from __future__ import annotations

import math
import time


class TimeLimit:
    """Counts from the first update, so that a slow start takes nothing of it: the server may still capture graphs.

    Args:
        seconds: of training; None for no limit.
        longest_start_s: from `attach`; a first update that takes longer is not waited for, the limit begins then.
    """

    def __init__(self, seconds: float | None, longest_start_s: float):
        self._seconds, self._longest_start_s = math.inf if seconds is None else seconds, longest_start_s
        self._over_at_s = math.inf  # monotonic

    def attach(self) -> None:
        """Note that all is there but the first batch."""
        self._over_at_s = time.monotonic() + self._longest_start_s + self._seconds

    def begin(self) -> None:
        """Note that the first update is done."""
        self._over_at_s = min(self._over_at_s, time.monotonic() + self._seconds)

    @property
    def is_over(self) -> bool:
        """Whether training is to end."""
        return time.monotonic() >= self._over_at_s
