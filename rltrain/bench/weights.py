"""`rltrain bench weights`: how long new weights take from the learner's call to the first action made with them.

The bench publishes, as the learner does, and asks, as an actor does; the server is a process of its own. Two cases: the
server has nothing to do and one request follows the publishing; or requests are always under way and the first answer
with the new version counts.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rltrain.bench.figures import Figure
from rltrain.bench.loads import Lanes
from rltrain.bench.partner import note_on_cores
from rltrain.bench.report import Chart, Report, Table
from rltrain.bench.serving import Policy, Serving
from rltrain.bench.suite import Progress, Tell

BAR_MS, BAR_PARAMETERS = 5.0, 1_000_000
NUM_GROUPS, ROWS = 4, 8
_BOOT_S = 4.0
_BATCHER = {
    "max_batch_size": NUM_GROUPS * ROWS, "preferred_batch_sizes": (), "max_queue_delay_us": 0.0, "adaptive": False,
}  # fmt: skip
_BETWEEN_S = 2e-3
"""Between two versions while the server is kept busy."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        widths: of the two hidden layers of actor and critic; about 10 thousand to 10 million parameters.
        turns: of everything.
        versions: published in each.
    """

    widths: tuple[int, ...] = (64, 220, 704, 2232)
    turns: int = 5
    versions: int = 100

    @classmethod
    def quick(cls) -> Plan:
        """Less than a minute."""
        return cls(turns=2, versions=20)


@dataclass
class Size:
    """A policy and its figures; each value is the median, or the highest, of the versions of a turn.

    Args:
        width: of its layers.
    """

    width: int
    num_parameters: int = 0
    publish: Figure = field(default_factory=lambda: Figure("ms"))
    idle: Figure = field(default_factory=lambda: Figure("ms"))
    idle_most: Figure = field(default_factory=lambda: Figure("ms"))
    busy: Figure = field(default_factory=lambda: Figure("ms"))
    busy_most: Figure = field(default_factory=lambda: Figure("ms"))
    forward: Figure = field(default_factory=lambda: Figure("ms"))


class WeightsBench:
    """The bench.

    Args:
        plan: how much.
        device: where the server runs the policy, as `learner.device`.
    """

    def __init__(self, plan: Plan, device: str = "cpu"):
        self.plan, self.device = plan, device
        self.sizes = [Size(width) for width in plan.widths]

    def run(self, tell: Tell) -> None:
        """Measure everything, one policy after the other: each has a server of its own."""
        plan = self.plan
        each_s = _BOOT_S + plan.turns * plan.versions * 0.02
        progress = Progress(tell, len(self.sizes) * each_s)
        for size in self.sizes:
            progress.say(f"layers of {size.width}")
            with Serving(NUM_GROUPS, ROWS, Policy((size.width, size.width), self.device)) as serving:
                size.num_parameters = serving.flat.flat.numel()
                exchange = _Exchange(serving)
                serving.serve(_BATCHER, partial(exchange.after, 0))  # everything is called once
                for _ in range(plan.turns):
                    serving.serve(_BATCHER, partial(self._turn, size, exchange))
            progress.advance(each_s, f"layers of {size.width}")

    def _turn(self, size: Size, exchange: _Exchange) -> None:
        versions = range(self.plan.versions)
        published, idle = zip(*(exchange.publish_and_ask() for _ in versions), strict=True)
        size.publish.values.append(1e3 * statistics.median(published))
        _add(idle, size.idle, size.idle_most)
        size.forward.values.append(1e3 * statistics.median(exchange.ask() for _ in versions))
        _add([exchange.publish_among_requests() for _ in versions], size.busy, size.busy_most)
        exchange.lanes.drain()

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        plan = self.plan
        table = Table(
            "from the start of publishing, ms",
            ("parameters", "published", "first used, server idle", "highest", "first used, server busy", "highest",
             "an answer without new weights"),
        )  # fmt: skip
        bars = Table("Bar", ("", "wanted", "measured", "reached"))
        chart = Chart("from publishing to first use", "parameters", "ms", limits={"bar at 1M": BAR_MS})
        for label in ("server idle", "server busy", "published"):
            chart.series[label] = []
        for size in self.sizes:
            if not size.idle.values:
                continue
            table.rows.append(
                (f"{size.num_parameters:,}", size.publish, size.idle, size.idle_most, size.busy, size.busy_most,
                 size.forward)
            )  # fmt: skip
            for label, figure in (("server idle", size.idle), ("server busy", size.busy), ("published", size.publish)):
                chart.series[label].append((size.num_parameters, figure))
            if abs(size.num_parameters / BAR_PARAMETERS - 1) < 0.1 and size.busy.median is not None:
                for label, figure in (("server idle", size.idle), ("server busy", size.busy)):
                    reached = "yes" if (figure.median or 0) <= BAR_MS else "no"
                    row = (f"{size.num_parameters:,} parameters, {label}: ms", f"<= {BAR_MS:g}", figure, reached)
                    bars.rows.append(row)
        how = (
            f"{plan.turns} turns of {plan.versions} versions each: medians of the turns' medians and of their highest, "
            f"(lowest to highest turn); {NUM_GROUPS} groups of {ROWS} rows, policy on {self.device}"
        )
        notes = [
            "first used: from the start of publishing to the moment at which the asking side has an action of the new "
            "version; publishing, the server's copy, its forward pass and the answer included",
            "server idle: one request follows the publishing; server busy: requests of all groups are always under "
            f"way, and a version is published every {1e3 * _BETWEEN_S:g} ms or later",
        ]
        cores = note_on_cores(2)
        return Report("rltrain bench weights", how, record, [table, bars], [chart], notes + ([cores] if cores else []))


def _add(seconds: Any, median: Figure, most: Figure) -> None:
    median.values.append(1e3 * statistics.median(seconds))
    most.values.append(1e3 * max(seconds))


class _Exchange:
    """Publishes and asks.

    Args:
        serving: the server, which is to serve while these are called.
    """

    def __init__(self, serving: Serving):
        self.serving, self.mailboxes = serving, serving.mailboxes
        self.lanes = Lanes(serving.mailboxes, serving.check)
        self.version = serving.version

    def ask(self) -> float:
        """Ask once, on one lane; returns the seconds until the answer."""
        return self.after(time.perf_counter())

    def after(self, began: float) -> float:
        """Ask once; returns the seconds from `began` to the answer."""
        self.lanes.post(0, time.monotonic_ns())
        self.lanes.drain()
        return time.perf_counter() - began

    def publish_and_ask(self) -> tuple[float, float]:
        """Return the seconds of publishing, and from its start to an answer of the new version."""
        began = time.perf_counter()
        published = self._publish(began)
        used = self.after(began)
        assert self.mailboxes.reply_version(0) == self.version, "the newest version answers"
        return published, used

    def publish_among_requests(self) -> float:
        """Return the seconds from the start of publishing to the first answer of the new version, requests going on."""
        until = time.perf_counter() + _BETWEEN_S
        while time.perf_counter() < until:
            self._ask_all()
        began = time.perf_counter()
        self._publish(began)
        while self._ask_all() < self.version:
            pass
        return time.perf_counter() - began

    def _publish(self, began: float) -> float:
        self.version += 1
        self.serving.board.publish(self.version, self.serving.flat.publish_view())
        return time.perf_counter() - began

    def _ask_all(self) -> int:
        """Take what was answered and ask again on those lanes; returns the highest version among the answers."""
        versions = [self.mailboxes.reply_version(lane) for lane, _, _ in self.lanes.answered()]
        for lane in range(self.serving.num_groups):
            if lane not in self.lanes.due_ns:
                self.lanes.post(lane, time.monotonic_ns())
        return max(versions, default=-1)
