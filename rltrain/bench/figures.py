"""A measured figure, and turns that alternate, so that all sides meet the same machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class Figure:
    """What was measured of one thing, once in each turn.

    Args:
        unit: such as `env steps/s`, `us`, `%`; shown in the heading, not beside each figure.
        values: one for each turn; empty where nothing could be measured.
        note: why there is none, or what is peculiar to it.
    """

    unit: str
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float | None:
        """The middle value; None when nothing was measured."""
        return statistics.median(self.values) if self.values else None


def ratio(of: Figure, to: Figure) -> Figure:
    """Return the ratio of two figures turn by turn: what disturbed both in a turn divides out."""
    pairs = zip(of.values, to.values, strict=False)
    return Figure("x", [a / b for a, b in pairs if b > 0])


def alternate(turns: int, sides: Iterable[tuple[Figure, Callable[[], float]]], tell: Callable[[], None]) -> None:
    """Measure every side once, then once more, and so on; every second round in reverse, so that none is always first.

    Args:
        turns: rounds.
        sides: figure to fill, and what measures one value of it.
        tell: called after each measurement.
    """
    order = list(sides)
    for turn in range(turns):
        for figure, measure in order if turn % 2 == 0 else order[::-1]:
            figure.values.append(measure())
            tell()
