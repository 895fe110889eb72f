"""What all benches have in common: they say what they do, how long it takes, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rltrain.bench.report import Report

Tell = Callable[[float, float, str], None]
"""Told of (seconds of the expected time that are done, expected seconds in all, what is being done)."""


class Suite(Protocol):
    """A bench. `report` says what is there so far, also when `run` was interrupted."""

    def run(self, tell: Tell) -> None:
        """Measure everything."""

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured; `record` is of `bench.record`."""


class Progress:
    """Counts what is done of the expected time.

    Args:
        tell: whom to tell.
        expected_s: a guess of how long all of it takes, in seconds.
    """

    def __init__(self, tell: Tell, expected_s: float):
        self._tell, self._expected_s = tell, expected_s
        self._done_s = 0.0

    def say(self, what: str) -> None:
        """Say what begins."""
        self._tell(self._done_s, self._expected_s, what)

    def advance(self, seconds: float, what: str) -> None:
        """Say that a part is done for which `seconds` were expected."""
        self._done_s += seconds
        self._tell(self._done_s, self._expected_s, what)
