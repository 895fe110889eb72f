"""What is measured of each way to batch under a load, and by which figures ways are compared.

Filled by `bench/batching.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rltrain.bench.figures import Figure, ratio
from rltrain.bench.loads import Answers, Load
from rltrain.bench.serving import Served
from rltrain.shm.counters import FIRE_REASONS, quantile

ADAPTIVE = "adaptive"
QUANTILES = (0.5, 0.95, 0.99)


@dataclass
class Side:
    """One way to batch under one load, and its figures.

    Args:
        label: of the way.
        batcher: fields of `BatcherSettings`.
    """

    label: str
    batcher: dict[str, Any]
    rate: Figure = field(default_factory=lambda: Figure("requests/s"))
    mean: Figure = field(default_factory=lambda: Figure("us"))
    """Of the latencies."""
    latency: dict[float, Figure] = field(default_factory=lambda: {q: Figure("us") for q in QUANTILES})
    delay: dict[float, Figure] = field(default_factory=lambda: {q: Figure("us") for q in QUANTILES})
    batch_rows: Figure = field(default_factory=lambda: Figure("rows"))
    reasons: dict[str, Figure] = field(default_factory=lambda: {name: Figure("%") for name in FIRE_REASONS})
    padding: Figure = field(default_factory=lambda: Figure("%"))
    busy: Figure = field(default_factory=lambda: Figure("%"))
    late: Figure = field(default_factory=lambda: Figure("%"))
    sizes: np.ndarray | None = None
    """Counts of batches by rows, all turns."""

    def add(self, answers: Answers, served: Served) -> None:
        """Take what a turn brought, all but the rate."""
        counters, delays = served.counters, served.histograms["queue_delay_us"]
        if answers.latencies_us:
            self.mean.values.append(float(np.mean(answers.latencies_us)))
        for q in QUANTILES:
            if answers.latencies_us:
                self.latency[q].values.append(answers.latency_us(q))
            delay = quantile(delays, q)
            if delay is not None:
                self.delay[q].values.append(delay)
        batches = counters["batches"]
        if batches:
            self.batch_rows.values.append(counters["rows"] / batches)
            self.padding.values.append(100 * counters["padded_rows"] / (counters["rows"] + counters["padded_rows"]))
            fired = {name: counters[f"fired_{name}"] for name in self.reasons}  # apart from `batches`, read in between
            for name, figure in self.reasons.items():
                figure.values.append(100 * fired[name] / max(1, sum(fired.values())))
        self.busy.values.append(100 * served.busy_share)
        self.late.values.append(100 * answers.num_late / max(1, answers.num_late + len(answers.latencies_us)))
        sizes = served.histograms["batch_size_rows"]
        self.sizes = sizes if self.sizes is None else self.sizes + sizes


@dataclass(frozen=True)
class Score:
    """A figure by which ways are compared.

    Args:
        text: unit and name.
        figure: of a side.
        is_less_better: whether the lower one is the better one.
    """

    text: str
    figure: Callable[[Side], Figure]
    is_less_better: bool = False

    def share(self, of: Side, to: Side) -> Figure:
        """Return how good a side is beside another one, turn by turn; above 1 is better than it."""
        first, second = (to, of) if self.is_less_better else (of, to)
        return ratio(self.figure(first), self.figure(second))

    def best(self, sides: Iterable[Side]) -> Side | None:
        """Return the best side; None before any was measured."""
        measured = [(median, side) for side in sides if (median := self.figure(side).median) is not None]
        pick = min if self.is_less_better else max
        return pick(measured, key=lambda pair: pair[0])[1] if measured else None


@dataclass
class Scene:
    """A load and all ways to batch under it.

    Args:
        name: short.
        text: what the load is.
        load: it; None until the rate is known.
        sides: label -> figures.
        by_latency: whether what counts is the latency, its mean and its p99: the server keeps up whatever it does.
    """

    name: str
    text: str
    load: Load | None
    sides: dict[str, Side]
    by_latency: bool = False

    def scores(self) -> list[Score]:
        """Return what counts under the load; the worst of them is the load's."""
        if not self.by_latency:
            return [Score("requests/s", lambda side: side.rate)]
        return [
            Score("us, mean latency", lambda side: side.mean, is_less_better=True),
            Score("us, p99 latency", lambda side: side.latency[0.99], is_less_better=True),
        ]


def best_static(scene: Scene, score: Score) -> Side | None:
    """Return the side that is best of those with settings that stay as they are; None before any was measured."""
    return score.best(side for side in scene.sides.values() if side.label != ADAPTIVE)
