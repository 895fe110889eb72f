"""What the trajectory ring moves between two processes: fragments without bytes, and bytes beside plain copies.

The fair copy: the ring has a fragment's bytes copied twice, by the writer into the slot and by the reader out of it.
So beside it the same two processes make the same two copies with `numpy.copyto`, over the same slots at the same time,
and nobody waits for the other. What the ring adds is all that differs: claim, publish, take, release, the sleeping and
waking, nine small fields beside the observation, and a gather into columns of a batch rather than into one block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rltrain.bench.figures import Figure, alternate, ratio
from rltrain.bench.partner import Partner, note_on_cores
from rltrain.bench.report import Chart, Report, Table
from rltrain.bench.ring_sides import NUM_PLACES, NUM_SLOTS, WAIT_S, Reader, arena_of
from rltrain.bench.suite import Progress, Tell

EMPTY_BAR_PER_S = 200_000
SHARE_BAR = 0.8
_BOOT_S = 0.7
"""Guess of a partner's start, for the time left."""
_WARM_UP = 64
_VERBS = ("claim", "publish", "take", "release")
_VERB_ROUNDS = 500
_GIGA = 1e9
SLEEPING, LOOKING = "waits asleep, as in a run", "looks again at once"


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        sizes: bytes of a fragment, about; the last is the one with the bar.
        turns: how often each side is measured.
        turn_s: how long one measurement takes, about.
    """

    sizes: tuple[int, ...] = (64 << 10, 256 << 10, 2 << 20)
    turns: int = 7
    turn_s: float = 1.0

    @classmethod
    def quick(cls) -> Plan:
        """Return the plan of `--quick`."""
        return cls(turns=3, turn_s=0.3)


class _Pair:
    """A writer, a reader and their arena."""

    def __init__(self, nbytes: int | None, stack: contextlib.ExitStack):
        self.arena = arena_of(nbytes)
        stack.callback(self.arena.close)
        self.partner = stack.enter_context(Partner("rltrain.bench.ring_sides", self.arena, {}))
        self.reader = Reader(self.arena, self.partner.check)
        self._counts: dict[object, int] = {}

    def both(self, turn_s: float, mine: Callable[[int], float], **order: Any) -> float:
        """Have the writer carry out an order while the reader does `mine`; returns repetitions per second.

        The slower of the two counts. The first call finds out how many repetitions take about `turn_s`.
        """

        def measure(count: int) -> float:
            self.partner.ask(count=count, **order)
            seconds = mine(count)
            return max(seconds, float(self.partner.answer(60.0)["seconds"]))

        return self._rate(tuple(order.items()), turn_s, measure)

    def alone(self, turn_s: float, mine: Callable[[int], float]) -> float:
        """Return the repetitions per second of something that the reader's process does by itself."""
        return self._rate("alone", turn_s, mine)

    def _rate(self, key: object, turn_s: float, measure: Callable[[int], float]) -> float:
        if key not in self._counts:
            count, seconds = _WARM_UP, 0.0
            while (seconds := measure(count)) < turn_s / 4:
                count *= 4
            self._counts[key] = max(1, int(count / seconds * turn_s))
        count = self._counts[key]
        return count / measure(count)


class RingBench:
    """Measures the ring.

    Args:
        plan: how much.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.empty = {name: Figure("fragments/s") for name in (SLEEPING, LOOKING)}
        self.verbs = {name: Figure("us") for name in _VERBS}
        self.ring = {size: Figure("GB/s") for size in plan.sizes}
        self.side_by_side = {size: Figure("GB/s") for size in plan.sizes}
        self.alone = {size: Figure("GB/s") for size in plan.sizes}
        self.slot_bytes: dict[int, int] = {}

    def run(self, tell: Tell) -> None:
        """Measure everything; every second turn in reverse order."""
        plan = self.plan
        num_sides = len(self.empty) + 1 + 3 * len(plan.sizes)
        progress = Progress(tell, (1 + len(plan.sizes)) * _BOOT_S + num_sides * plan.turns * plan.turn_s)
        with contextlib.ExitStack() as stack:
            progress.say("starting writers")
            empty = _Pair(None, stack)
            sides: list[tuple[Figure, Callable[[], float]]] = [
                (self.empty[SLEEPING], lambda: self._empty(empty, WAIT_S)),
                (self.empty[LOOKING], lambda: self._empty(empty, 0.0)),
                (self.verbs["claim"], lambda: self._verbs(empty)),
            ]
            for size in plan.sizes:
                pair = _Pair(size, stack)
                self.slot_bytes[size] = pair.arena.layout.schema.slot_bytes()
                sides += self._sides(size, pair)
            progress.advance((1 + len(plan.sizes)) * _BOOT_S, "measuring")
            alternate(plan.turns, sides, lambda: progress.advance(plan.turn_s, "measuring"))

    def _empty(self, pair: _Pair, wait_s: float) -> float:
        return pair.both(self.plan.turn_s, lambda count: pair.reader.empty(count, wait_s), do="empty", wait_s=wait_s)

    def _verbs(self, pair: _Pair) -> float:
        times = pair.reader.verbs(_VERB_ROUNDS)
        for name in _VERBS[1:]:
            self.verbs[name].values.append(times[name])
        return times["claim"]

    def _sides(self, size: int, pair: _Pair) -> list[tuple[Figure, Callable[[], float]]]:
        slot, reader, turn_s = self.slot_bytes[size] / _GIGA, pair.reader, self.plan.turn_s
        obs = reader.obs_bytes / _GIGA
        return [
            (self.ring[size], lambda: slot * pair.both(turn_s, reader.gather, do="write")),
            (self.side_by_side[size], lambda: obs * pair.both(turn_s, reader.copy, do="copy")),
            (self.alone[size], lambda: obs * pair.alone(turn_s, reader.copy_twice)),
        ]

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured so far."""
        plan = self.plan
        report = Report(
            "rltrain bench ring: fragments from one process to another",
            f"medians (lowest to highest) of {plan.turns} turns of about {plan.turn_s:g} s, all sides in turn; "
            f"{NUM_SLOTS} slots, one writer, one reader",
            record,
        )
        report.tables = [self._table_of_empty(), self._table_of_verbs(), self._table_of_bytes(), self._table_of_bars()]
        bars = Chart("What the ring moves, beside plain copies", "bytes of a fragment", "GB/s")
        for label, figures in (
            ("through the ring", self.ring), ("copies side by side", self.side_by_side),
            ("both copies in one process", self.alone),
        ):  # fmt: skip
            bars.series[label] = [(_size_name(size), figure) for size, figure in figures.items()]
        empty = Chart("Fragments without bytes", "the reader and the writer", "fragments/s")
        empty.series["through the ring"] = list(self.empty.items())
        empty.limits["bar"] = EMPTY_BAR_PER_S
        report.charts = [bars, empty]
        report.notes = self._notes()
        return report

    def _table_of_empty(self) -> Table:
        table = Table("Empty fragments: claim and publish in one process, take and release in another",
                      ("where there is nothing to do, a side", "fragments/s"))  # fmt: skip
        table.rows = [(name, figure) for name, figure in self.empty.items()]
        return table

    def _table_of_verbs(self) -> Table:
        table = Table("One process alone, nobody waits: us a call, Python included", ("", *_VERBS))
        table.rows = [("us", *(self.verbs[name] for name in _VERBS))]
        return table

    def _table_of_bytes(self) -> Table:
        columns = ("a fragment of", "ring", "copies side by side", "ratio", "both in one process", "ratio")
        table = Table("Bytes, written once and read once: GB/s (of 1e9 bytes) of fragments", columns)
        for size in self.plan.sizes:
            moved, beside, alone = self.ring[size], self.side_by_side[size], self.alone[size]
            table.rows.append(
                (_size_name(size), moved, beside, ratio(moved, beside), alone, ratio(moved, alone))
            )
        return table

    def _table_of_bars(self) -> Table:
        largest = self.plan.sizes[-1]
        table = Table("Bars", ("", "wanted", "measured", "reached"))
        for name, wanted, measured in (
            (f"{_size_name(largest)}: share of copies side by side", SHARE_BAR,
             ratio(self.ring[largest], self.side_by_side[largest])),
            (f"empty, {SLEEPING}: fragments/s", EMPTY_BAR_PER_S, self.empty[SLEEPING]),
            (f"empty, {LOOKING}: fragments/s", EMPTY_BAR_PER_S, self.empty[LOOKING]),
        ):  # fmt: skip
            reached = "-" if measured.median is None else "yes" if measured.median >= wanted else "no"
            table.rows.append((name, f">= {wanted:,}", measured, reached))
        return table

    def _notes(self) -> list[str]:
        notes = [
            "the ring: the writer copies every field from memory of its own into the slot (one copy; an actor's env "
            "writes there directly), the reader gathers all fields into its columns of a batch of "
            f"{NUM_PLACES} fragments (one copy)",
            "copies side by side: the same two processes make as many copies with numpy.copyto, the observations only, "
            "over the same slots at once, and neither waits for the other; the bar's ratio is to these",
            "both in one process: the two copies one behind the other, on one core, in memory of its own; the ring has "
            "two cores, so it may come out faster",
            f"empty, {SLEEPING}: the faster side finds the ring empty or full, sleeps and is woken for a fragment or a "
            "few; these system calls bind, not the calls from Python, which the table of one process alone gives",
            f"empty, {LOOKING}: nobody sleeps, so the calls bind; needs two cores that nothing else runs on, and "
            "stands still for whole time slices where something does",
            "small fragments: the calls from Python for each of ten fields, and 33 rows of each gathered one by one, "
            "bind; only the large ones are copies above all",
        ]
        cores = note_on_cores(2)
        return notes + ([cores] if cores else [])


def _size_name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
