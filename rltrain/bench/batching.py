"""`rltrain bench batching`: what ways to batch make of loads on the inference server.

One server process, a small policy, and a load of the bench's own process. All ways take turns under each load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rltrain.bench.batching_scenes import ADAPTIVE, QUANTILES, Scene, Side, best_static
from rltrain.bench.figures import Figure, alternate
from rltrain.bench.loads import Answers, Closed, Load, Open
from rltrain.bench.partner import note_on_cores
from rltrain.bench.report import Cell, Chart, Report, Table
from rltrain.bench.serving import Policy, Served, Serving
from rltrain.bench.suite import Progress, Tell
from rltrain.config.resolve import ADAPTIVE_DELAY_US
from rltrain.shm.counters import BIN_EDGES, FIRE_REASONS

ADAPTIVE_BAR = 0.95
BOUND_US = float(ADAPTIVE_DELAY_US)
"""Longest wait of `adaptive`, as in a run that says nothing else, and of the way that waits for batches of one size."""
DELAYS_US = (0.0, 200.0, 1000.0, 5000.0)
_BOOT_S = 5.0
_ALL_PERCENT = 5.0
"""Fewer requests of a load without an answer: it did not bind."""
_CALIBRATION_S = 0.33
"""Of each of three: one way to call everything once, one request at a time, the largest batches."""
LIGHT, HEAVY = 0.5, 1.5
"""What is offered: of the rate of one request at a time, and of that of the largest batches."""
_ONE_BY_ONE, _LARGEST = "none: one request at a time", "dynamic, delay 0 ms"


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


def ways(num_groups: int, rows: int) -> dict[str, dict[str, Any]]:
    """Return label -> fields of `BatcherSettings`."""
    most = num_groups * rows
    plain: dict[str, Any] = {"preferred_batch_sizes": (), "max_queue_delay_us": 0.0, "adaptive": False}
    half = max(1, num_groups // 2) * rows
    return {
        _ONE_BY_ONE: {**plain, "max_batch_size": rows},
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
        self.most: float | None = None
        """The same in the largest batches: as many as wait, at once."""

        def sides() -> dict[str, Side]:
            return {label: Side(label, batcher) for label, batcher in ways(plan.num_groups, plan.rows).items()}

        self.scenes = [
            Scene("even", "closed, every group steps 0.3 ms", Closed(300, 300), sides()),
            Scene("uneven", "closed, every step takes 1 to 20 ms", Closed(1000, 20_000), sides()),
            Scene("heavy", f"open, {HEAVY} x of what the largest batches can do: more than any way answers", None,
                  sides()),
            Scene("light", f"open, {LIGHT} x of what one request at a time can do", None, sides(), by_latency=True),
        ]  # fmt: skip

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
        rates = [
            _ask(serving, self.scenes[0].sides[label].batcher, Closed(0, 0), _CALIBRATION_S)[0].requests_per_s
            for label in (_ONE_BY_ONE, _ONE_BY_ONE, _LARGEST)
        ]
        self.capacity, self.most = rates[1:]
        # the larger: on a network that gains nothing by batches, one request at a time may be the fastest
        self.scenes[2].load = Open(HEAVY * max(self.capacity, self.most))
        self.scenes[3].load = Open(LIGHT * self.capacity)

    def _measure(self, serving: Serving, scene: Scene, side: Side) -> float:
        assert scene.load is not None, "calibrated"
        answers, served = _ask(serving, side.batcher, scene.load, self.plan.turn_s)
        side.add(answers, served)
        return answers.requests_per_s

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        plan, hidden = self.plan, " x ".join(map(str, self.policy.hidden_sizes))
        capacity = (
            "" if self.capacity is None or self.most is None
            else f"; without a pause {self.capacity:,.0f} requests a second one at a time, {self.most:,.0f} in the "
            "largest batches"
        )  # fmt: skip
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
            "heavy: more is offered than any way answers, so that what each can answer at most is compared",
            "light: the server keeps up in every way, so the latency counts, its mean and its p99, each beside the way "
            "that is best by it, and the worse of the two ratios is the load's; else the requests answered",
            f"adaptive: the wait follows from what was seen, at most {BOUND_US / 1e3:g} ms; the same settings under "
            "all loads",
            "not answered: due but without an answer when the turn ended; where these are many, latencies are of a "
            "queue that grows, and depend on the length of a turn",
            "the load looks for answers without a pause and so keeps a core busy",
        ]
        late = {side.label: side.late.median for side in self.scenes[2].sides.values()}
        answering = [label for label, percent in late.items() if percent is not None and percent < _ALL_PERCENT]
        if answering:
            notes.append(
                f"heavy: answered nearly all that was offered: {'; '.join(answering)}. The load was too small to tell "
                "these apart: the machine was slower while the rate was found"
            )
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


def _adaptive_table(scenes: list[Scene]) -> Table:
    table = Table(
        "adaptive, the same under all loads, beside the best of the others under each",
        ("load", "the best other", "its figure", "adaptive", "ratio", "wanted", "reached"),
    )
    for scene, score in [(each, score) for each in scenes for score in each.scores()]:
        best, adaptive = best_static(scene, score), scene.sides[ADAPTIVE]
        if best is None or not score.figure(adaptive).values:
            continue
        share = score.share(adaptive, best)
        reached = "yes" if share.median is not None and share.median >= ADAPTIVE_BAR else "no"
        label = f"{scene.name}: {score.text}"
        shown: list[Cell] = [score.figure(best), score.figure(adaptive)]
        table.rows.append((label, best.label, *shown, share, f">= {ADAPTIVE_BAR}", reached))
    return table


def _speed_table(scene: Scene) -> Table:
    columns = ("", "requests/s", "latency mean us", *(f"latency p{q * 100:g} us" for q in QUANTILES),
               "not answered %", "server busy %")  # fmt: skip
    table = Table(f"load {scene.name}: {scene.text}", columns)
    table.rows = [
        (side.label, side.rate, side.mean, *side.latency.values(), side.late, side.busy)
        for side in scene.sides.values()
    ]
    return table


def _batch_table(scene: Scene) -> Table:
    columns = ("", "rows a batch", *(f"queue delay p{q * 100:g} us" for q in QUANTILES),
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
