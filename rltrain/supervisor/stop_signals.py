"""Signals that ask a run to stop.

Owns: which came, in order; the handlers that were set before. Looked at by boot and by the supervisor.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopSignals:
    """Catches SIGINT, SIGTERM, SIGHUP (the terminal is gone) and SIGQUIT until `release`.

    Not those that nohup and the like turned off.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """Those that came."""
        caught = [number for number in _ASKING if signal.getsignal(number) != signal.SIG_IGN]
        self._previous: dict[int, Any] = {number: signal.signal(number, self._note) for number in caught}

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.numbers.append(number)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    @property
    def first(self) -> int:
        """The number of the first one that came."""
        return self.numbers[0]

    @property
    def num_asked(self) -> int:
        """How many came by which somebody may have asked for more haste: a SIGHUP is only the first time one."""
        return sum(number != signal.SIGHUP or i == 0 for i, number in enumerate(self.numbers))

    @property
    def is_urgent(self) -> bool:
        """Whether to stop at once: SIGQUIT, or two of which the second is not SIGHUP.

        A terminal that closes may send SIGHUP more than once, and nobody is there to mean anything by it.
        """
        return signal.SIGQUIT in self.numbers or self.num_asked > 1

    @property
    def names(self) -> str:
        """Their names, as in `SIGINT, then SIGTERM`."""
        return ", then ".join(signal.Signals(number).name for number in self.numbers)

    def release(self) -> None:
        """Give back the handlers that were set before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
