"""Whether and when a dead process is started again.

Owns: the budget of restarts of each process. Called by the supervisor after it reaped one.
No clock and no process: times in, a decision out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGEST_BACKOFF_S = 30.0
STEADY_S = 10.0
"""A process that ran this long since it was ready is restarted at once when it dies: waiting is for those that cannot
even begin, because something that they need is away."""
HEALTHY_S = 600.0
"""A process that ran this long since its last death has its whole budget again: rare faults of a run of days
(one in ten minutes or fewer) do not add up, a process that keeps dying still runs out."""


@dataclass(frozen=True)
class Restart:
    """Start the process again at `at_s`, in the clock of the caller."""

    at_s: float


@dataclass(frozen=True)
class GiveUp:
    """Stop the run, for `reason`, a sentence."""

    reason: str
    num_deaths: int = 1
    """That count against the budget, this one included."""


@dataclass
class _History:
    restarts: int = 0
    quick_deaths: int = 0
    """In a row."""
    started_s: float | None = None


class Restarts:
    """Counts deaths and spaces restarts, for each process by itself.

    Args:
        max_restarts: restarts of one process before the run stops, `supervision.max_restarts`.
        backoff_s: wait before the restart of a process that had one and died within 10 s of being ready again,
            `supervision.restart_backoff_s`; doubled for each further such death in a row, at most 30 s. Any other
            restart comes at once: most deaths are single ones, and all other processes wait for it.
    """

    def __init__(self, max_restarts: int, backoff_s: float):
        self.max_restarts, self.backoff_s = max_restarts, backoff_s
        self._histories: dict[str, _History] = {}

    def after_death(self, name: str, now_s: float, ready_s: float | None, may_differ: bool = True) -> Restart | GiveUp:
        """Decide what follows a death.

        Args:
            name: the process's name.
            now_s: time of the death, in seconds of a monotonic clock.
            ready_s: when it had become ready, on the same clock; None when it had not.
            may_differ: whether another one may do better; what a process told while starting, it would tell again.

        Returns:
            `Restart`, or `GiveUp` when it would fail again or died once more than the budget allows.
        """
        if not may_differ:
            return GiveUp(f"{name} failed while starting, so it is not restarted.")
        history = self._histories.setdefault(name, _History())
        lived_s = math.inf if history.started_s is None else now_s - history.started_s
        if lived_s >= HEALTHY_S:
            history.restarts = 0
        is_steady = ready_s is not None and now_s - ready_s >= STEADY_S
        history.quick_deaths = 0 if history.started_s is None or is_steady else history.quick_deaths + 1
        if history.restarts >= self.max_restarts:
            return GiveUp(
                f"{name} died {_times(history.restarts + 1)}, supervision.max_restarts = {self.max_restarts}. "
                "Look at its log for the cause; a larger max_restarts tolerates more.",
                history.restarts + 1,
            )
        wait_s = self.backoff_s * 2.0 ** min(history.quick_deaths - 1, 64) if history.quick_deaths else 0.0
        at_s = now_s + min(LONGEST_BACKOFF_S, wait_s)
        history.restarts += 1
        history.started_s = at_s
        return Restart(at_s)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
