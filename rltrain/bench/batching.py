"""`rltrain bench batching`: what ways to batch make of loads on the inference server.

One server process, a small policy, and a load of the bench's own process. All ways take turns under each load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rltrain.bench.figures import Figure, alternate, ratio
from rltrain.bench.loads import Answers, Closed, Load, Open
from rltrain.bench.partner import note_on_cores
from rltrain.bench.report import Cell, Chart, Report, Table
from rltrain.bench.serving import Policy, Served, Serving
from rltrain.bench.suite import Progress, Tell
from rltrain.config.resolve import ADAPTIVE_DELAY_US
from rltrain.shm.counters import BIN_EDGES, FIRE_REASONS, quantile

ADAPTIVE = "adaptive"
ADAPTIVE_BAR = 0.95
BOUND_US = float(ADAPTIVE_DELAY_US)
"""Longest wait of `adaptive`, as in a run that says nothing else, and of the way that waits for batches of one size."""
DELAYS_US = (0.0, 200.0, 1000.0, 5000.0)
_BOOT_S = 5.0
_QUANTILES = (0.5, 0.95, 0.99)
_CALIBRATION_S = 0.5


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        turns: of everything.
        turn_s: of one way under one load.
        num_groups: env groups, each with at most one request in flight.
        rows: envs of a group.
    """

    turns: int = 5
    turn_s: float = 1.0
    num_groups: int = 16
    rows: int = 8

    @classmethod
    def quick(cls, num_groups: int = 16, rows: int = 8) -> Plan:
        """Less than a minute."""
        return cls(2, 0.3, num_groups, rows)


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
    latency: dict[float, Figure] = field(default_factory=lambda: {q: Figure("us") for q in _QUANTILES})
    delay: dict[float, Figure] = field(default_factory=lambda: {q: Figure("us") for q in _QUANTILES})
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
        for q in _QUANTILES:
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


@dataclass
class Scene:
    """A load and all ways to batch under it.

    Args:
        name: short.
        text: what the load is.
        load: it; None until the rate is known.
        sides: label -> figures.
        by_latency: whether what counts is the mean latency: the server keeps up whatever it does.
    """

    name: str
    text: str
    load: Load | None
    sides: dict[str, Side]
    by_latency: bool = False

    def score(self, side: Side) -> Figure:
        """What counts of a side, more being better."""
        return Figure("1/s", [1e6 / value for value in side.latency[0.5].values]) if self.by_latency else side.rate


def ways(num_groups: int, rows: int) -> dict[str, dict[str, Any]]:
    """Return label -> fields of `BatcherSettings`."""
    most = num_groups * rows
    plain: dict[str, Any] = {"preferred_batch_sizes": (), "max_queue_delay_us": 0.0, "adaptive": False}
    half = max(1, num_groups // 2) * rows
    return {
        "none: one request at a time": {**plain, "max_batch_size": rows},
        f"fixed: {half} rows": {
            **plain, "max_batch_size": half, "preferred_batch_sizes": (half,), "max_queue_delay_us": BOUND_US,
        },
        **{
            f"dynamic, delay {delay / 1e3:g} ms": {**plain, "max_batch_size": most, "max_queue_delay_us": delay}
            for delay in DELAYS_US
        },
        ADAPTIVE: {**plain, "max_batch_size": most, "max_queue_delay_us": BOUND_US, "adaptive": True},
    }  # fmt: skip


class BatchingBench:
    """The bench.

    Args:
        plan: how much.
        policy: what the server runs.
    """

    def __init__(self, plan: Plan, policy: Policy | None = None):
        self.plan, self.policy = plan, policy or Policy()
        self.capacity: float | None = None
        """Requests answered a second one at a time, without a pause."""

        def sides() -> dict[str, Side]:
            return {label: Side(label, batcher) for label, batcher in ways(plan.num_groups, plan.rows).items()}

        self.scenes = [
            Scene("even", "closed, every group steps 0.3 ms", Closed(300, 300), sides()),
            Scene("uneven", "closed, every step takes 1 to 20 ms", Closed(1000, 20_000), sides()),
            Scene("heavy", "open, 1.5 x of what one request at a time can do", None, sides()),
            Scene("light", "open, 0.5 x of what one request at a time can do", None, sides(), by_latency=True),
        ]

    def run(self, tell: Tell) -> None:
        """Measure everything."""
        plan = self.plan
        number = sum(len(scene.sides) for scene in self.scenes)
        progress = Progress(tell, _BOOT_S + number * plan.turns * plan.turn_s)
        progress.say("starting the server")
        with Serving(plan.num_groups, plan.rows, self.policy) as serving:
            self._calibrate(serving)
            progress.advance(_BOOT_S, "all loads")
            for scene in self.scenes:
                sides = [(side.rate, partial(self._measure, serving, scene, side)) for side in scene.sides.values()]
                alternate(plan.turns, sides, partial(progress.advance, plan.turn_s, f"load: {scene.name}"))

    def _calibrate(self, serving: Serving) -> None:
        """Find the open loads' rates, and let everything be called once."""
        label = next(iter(ways(1, 1)))
        batcher = self.scenes[0].sides[label].batcher
        found = Answers()
        for _ in range(2):
            answers, _ = _ask(serving, batcher, Closed(0, 0), _CALIBRATION_S)
            found = answers
        self.capacity = found.requests_per_s
        self.scenes[2].load, self.scenes[3].load = Open(1.5 * self.capacity), Open(0.5 * self.capacity)

    def _measure(self, serving: Serving, scene: Scene, side: Side) -> float:
        assert scene.load is not None, "calibrated"
        answers, served = _ask(serving, side.batcher, scene.load, self.plan.turn_s)
        side.add(answers, served)
        return answers.requests_per_s

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        plan, hidden = self.plan, " x ".join(map(str, self.policy.hidden_sizes))
        capacity = "" if self.capacity is None else f"; one request at a time: {self.capacity:,.0f} a second"
        how = (
            f"medians of {plan.turns} turns of {plan.turn_s:g} s that alternate, (lowest to highest); "
            f"{plan.num_groups} groups of {plan.rows} rows, an MLP of {hidden} on {self.policy.device}{capacity}"
        )
        tables = [_adaptive_table(self.scenes)]
        for scene in self.scenes:
            tables += [_speed_table(scene), _batch_table(scene)]
        charts = [Chart("requests answered", "load", "requests/s",
                        {label: [(scene.name, scene.sides[label].rate) for scene in self.scenes]
                         for label in self.scenes[0].sides}),
                  *map(_sizes_chart, self.scenes)]  # fmt: skip
        return Report("rltrain bench batching", how, record, tables, charts, self._notes())

    def _notes(self) -> list[str]:
        notes = [
            "closed: groups ask, are answered, step, ask again; open: requests arrive at random moments, whatever the "
            "server does, and wait where all groups are waiting",
            "latency: from the moment a request was due to its answer; queue delay: from its arrival to the start of "
            "its batch, lower edges of bins (up to 19 % low)",
            "light: the server keeps up in every way, so the median latency counts; else the requests answered",
            f"adaptive: the wait follows from what was seen, at most {BOUND_US / 1e3:g} ms; the same settings under "
            "all loads",
            "not answered: due but without an answer when the turn ended; where these are many, latencies are of a "
            "queue that grows, and depend on the length of a turn",
            "the load looks for answers without a pause and so keeps a core busy",
        ]
        cores = note_on_cores(2)
        return notes + ([cores] if cores else [])


def _ask(
    serving: Serving, batcher: dict[str, Any], load: Load, seconds: float
) -> tuple[Answers, Served]:
    found: list[Answers] = []

    def ask() -> None:
        found.append(load.run(serving.mailboxes, seconds, serving.check))

    served = serving.serve(batcher, ask)
    return found[0], served


def best_static(scene: Scene) -> Side | None:
    """Return the side that is best of those with settings that stay as they are; None before any was measured."""
    measured = [side for side in scene.sides.values() if side.label != ADAPTIVE and scene.score(side).values]
    return max(measured, key=lambda side: scene.score(side).median or 0.0, default=None)


def _adaptive_table(scenes: list[Scene]) -> Table:
    table = Table(
        "adaptive, the same under all loads, beside the best of the others under each",
        ("load", "the best other", "its figure", "adaptive", "ratio", "wanted", "reached"),
    )
    for scene in scenes:
        best, adaptive = best_static(scene), scene.sides[ADAPTIVE]
        if best is None or not scene.score(adaptive).values:
            continue
        share = ratio(scene.score(adaptive), scene.score(best))
        shown: list[Cell] = [side.latency[0.5] if scene.by_latency else side.rate for side in (best, adaptive)]
        reached = "yes" if share.median is not None and share.median >= ADAPTIVE_BAR else "no"
        unit = "us, median latency" if scene.by_latency else "requests/s"
        label = f"{scene.name}: {unit}"
        table.rows.append((label, best.label, *shown, share, f">= {ADAPTIVE_BAR}", reached))
    return table


def _speed_table(scene: Scene) -> Table:
    columns = ("", "requests/s", *(f"latency p{q * 100:g} us" for q in _QUANTILES), "not answered %", "server busy %")
    table = Table(f"load {scene.name}: {scene.text}", columns)
    table.rows = [
        (side.label, side.rate, *side.latency.values(), side.late, side.busy) for side in scene.sides.values()
    ]
    return table


def _batch_table(scene: Scene) -> Table:
    columns = ("", "rows a batch", *(f"queue delay p{q * 100:g} us" for q in _QUANTILES),
               *(f"{name} %" for name in FIRE_REASONS), "padding %")  # fmt: skip
    table = Table(f"load {scene.name}: batches, why they fired, what was padded", columns, shows_spread=False)
    table.rows = [
        (side.label, side.batch_rows, *side.delay.values(), *side.reasons.values(), side.padding)
        for side in scene.sides.values()
    ]
    return table


def _sizes_chart(scene: Scene) -> Chart:
    """Shares of batch sizes; the ways that have only one size are left out."""
    chart = Chart(f"load {scene.name}: batch sizes", "rows of a batch, at least", "% of the batches")
    for side in scene.sides.values():
        if side.sizes is not None and np.count_nonzero(side.sizes) > 1:
            total = side.sizes.sum()
            chart.series[side.label] = [
                (float(BIN_EDGES[i]), Figure("%", [100 * float(side.sizes[i]) / total]))
                for i in np.flatnonzero(side.sizes)
            ]
    return chart
