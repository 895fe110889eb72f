"""Measures rltrain beside the peers: picks each one's fastest setting, then all take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rltrain.bench.figures import Figure, ratio
from rltrain.bench.report import Cell, Chart, Report, Table
from rltrain.bench.suite import Progress, Tell
from tools.peers.drive import FRAGMENT_LENGTH, TARGET, Job, Measured, PeerError
from tools.peers.libraries import Options, Side, written

WORKS = ("cartpole", "threshold", "pong", "start")
Measure = Callable[[Side, Job, Options, bool], Measured]
"""Trains a side with one setting, its memory watched or not; raises `PeerError`."""
_GUESSED_BOOT_S = 6.0
_START_S = 8.0
"""From process start; a peer that takes longer to its first update ends with it."""
TITLES = {
    "cartpole": "CartPole-v1: env steps learned a second; PPO, two networks of 2 x 64, one pass over the data",
    "threshold": f"CartPole-v1: seconds from process start to a mean return of {TARGET:g}, each with its best known "
    "hyperparameters",
    "pong": "ALE/Pong-v5, 84 x 84 gray, 4 frames, frame skip 4: decisions learned a second; Nature CNN, one pass",
    "start": "CartPole-v1 with the settings of the table of seconds to the return: start and memory",
}


@dataclass(frozen=True)
class Plan:
    """How long is measured.

    Args:
        turns: of each side at its fastest setting.
        turn_s: of a side; twice of Pong, whose batches take seconds.
        probe_s: of each setting before that, to find the fastest; 0: the first setting is taken.
        seeds: 1, 2, ...: how often each side trains to the return.
        limit_s: longest time to the return.
    """

    turns: int = 5
    turn_s: float = 8.0
    probe_s: float = 3.0
    seeds: int = 3
    limit_s: float = 120.0

    @classmethod
    def quick(cls) -> Plan:
        """One short turn."""
        return cls(turns=1, turn_s=2.0, probe_s=0.0, seeds=1, limit_s=40.0)


@dataclass
class Row:
    """A side, and what was measured of it in one work.

    Args:
        side: who.
        chosen: its fastest setting; None when none worked.
        reason: why it has no figures.
        rate, first, seconds, memory: by turn or seed.
        num_reached: seeds that came to the return.
    """

    side: Side
    chosen: Options | None = None
    reason: str = ""
    rate: Figure = field(default_factory=lambda: Figure("per s"))
    first: Figure = field(default_factory=lambda: Figure("s"))
    seconds: Figure = field(default_factory=lambda: Figure("s"))
    memory: Figure = field(default_factory=lambda: Figure("MiB"))
    num_reached: int = 0


def fastest(tried: list[tuple[Options, float | None]]) -> Options | None:
    """Return the setting with the highest rate; None when none has any."""
    found = [(rate, options) for options, rate in tried if rate is not None]
    return max(found, key=lambda pair: pair[0])[1] if found else None


class PeersBench:
    """The bench.

    Args:
        sides: work -> who takes part.
        plan: how long.
        measure: trains.
        missing: peer, or label of a side -> why it is not installed.
        notes: said under the tables.
    """

    def __init__(
        self, sides: dict[str, list[Side]], plan: Plan, measure: Measure, missing: dict[str, str], notes: list[str]
    ):
        self.plan, self.notes = plan, list(notes)
        self._measure = measure
        self.rows = {work: [Row(side) for side in sides[work]] for work in WORKS if work in sides}
        for row in (row for rows in self.rows.values() for row in rows):
            for name in (row.side.label, row.side.peer):
                if name in missing:
                    row.reason = f"not installed: {missing[name]}"

    def run(self, tell: Tell) -> None:
        """Measure everything."""
        self._progress = Progress(tell, self._expected_s())
        for work, rows in self.rows.items():
            self._choose(work, rows)
            takers = [row for row in rows if row.chosen is not None]
            for turn in range(self.plan.seeds if work == "threshold" else self.plan.turns):
                for row in takers if turn % 2 == 0 else takers[::-1]:
                    self._take_turn(work, row, turn)

    def _expected_s(self) -> float:
        total = 0.0
        for work, rows in self.rows.items():
            job_s, present = self._seconds(work), [row for row in rows if not row.reason]
            turns = self.plan.seeds if work == "threshold" else self.plan.turns
            total += len(present) * turns * (job_s + _GUESSED_BOOT_S)
            if self.plan.probe_s and work in FRAGMENT_LENGTH:
                each_s = self._probe_s(work) + _GUESSED_BOOT_S
                total += sum(len(row.side.settings) for row in present) * each_s
        return total

    def _seconds(self, work: str) -> float:
        """What a turn takes, as far as it is known."""
        return {"start": 2.0, "threshold": 15.0, "pong": 2 * self.plan.turn_s}.get(work, self.plan.turn_s)

    def _probe_s(self, work: str) -> float:
        return self.plan.probe_s * (2 if work == "pong" else 1)

    def _choose(self, work: str, rows: list[Row]) -> None:
        """Find each side's fastest setting."""
        for row in (row for row in rows if not row.reason):
            settings = row.side.settings
            if work not in FRAGMENT_LENGTH or not self.plan.probe_s or len(settings) == 1:
                row.chosen = settings[0]
                continue
            tried: list[tuple[Options, float | None]] = []
            for options in settings:
                found = self._try(work, row, options, Job(work, self._probe_s(work)), f"setting {written(options)}")
                tried.append((options, found.env_steps_per_s if found else None))
            row.chosen = fastest(tried)
            if row.chosen is not None:
                row.reason = ""

    def _take_turn(self, work: str, row: Row, turn: int) -> None:
        assert row.chosen is not None, "only those with a setting take turns"
        seconds, seed = self._seconds(work), turn + 1
        if work == "threshold":
            job = Job("cartpole", self.plan.limit_s, to_target=True, seed=seed)
        elif work == "start":
            job = Job("cartpole", _START_S, to_target=True, seed=seed)
        else:
            job = Job(work, seconds, seed=seed)
        found = self._try(work, row, row.chosen, job, f"turn {turn + 1}", is_watched=work == "start")
        if found is None:
            return
        row.reason = ""
        if work in FRAGMENT_LENGTH and found.env_steps_per_s is not None:
            row.rate.values.append(found.env_steps_per_s)
        if found.first_update_s is not None:
            row.first.values.append(found.first_update_s)
        if work == "threshold":
            row.num_reached += found.seconds_to_target is not None
            row.seconds.values.append(found.seconds_to_target or self.plan.limit_s)
        if work == "start":
            row.memory.values.append(found.peak_bytes / 2**20)

    def _try(
        self, work: str, row: Row, options: Options, job: Job, what: str, is_watched: bool = False
    ) -> Measured | None:
        """Measure once; what fails is named, and the rest goes on."""
        self._progress.say(f"{work}: {row.side.label}, {what}")
        try:
            return self._measure(row.side, job, {**row.side.fixed, **options}, is_watched)
        except PeerError as error:
            row.reason = str(error)
            self.notes.append(f"{work}, {row.side.label}, {what}: {error}")
            return None
        finally:
            self._progress.advance((15.0 if job.to_target else job.seconds) + _GUESSED_BOOT_S, row.side.label)

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        plan = self.plan
        report = Report(
            "python tools/bench_peers.py",
            f"medians of {plan.turns} turns of {plan.turn_s:g} s (Pong {2 * plan.turn_s:g} s) that alternate, (lowest "
            "to highest), each side in processes of its own at the fastest of its settings; ratios turn by turn",
            record, notes=list(self.notes),
        )  # fmt: skip
        for work, rows in self.rows.items():
            report.tables.append(self._table(work, rows))
            if work in FRAGMENT_LENGTH:
                bars: list[tuple[str | float, Figure]] = [(r.side.label.replace(", ", "\n"), r.rate) for r in rows]
                report.charts.append(Chart(TITLES[work], "", "per s", {"": bars}))
        if "threshold" in self.rows:
            report.notes.append(f"{plan.limit_s:g} s to the return: it was not reached by then, or not at all")
        if "start" in self.rows:
            report.notes.append("memory is resident memory summed up over processes: pages they share count in each")
        return report

    def _table(self, work: str, rows: list[Row]) -> Table:
        if work == "threshold":
            table = Table(TITLES[work], ("", f"s to {TARGET:g}", "seeds that reached it", "setting"))
            for row in rows:
                reached = f"{row.num_reached} of {len(row.seconds.values)}" if row.seconds.values else ""
                table.rows.append((row.side.label, _or_reason(row.seconds, row), reached, _setting(row)))
        elif work == "start":
            table = Table(TITLES[work], ("", "s to the first update", "peak MiB"))
            table.rows += [(row.side.label, _or_reason(row.first, row), row.memory) for row in rows]
        else:
            own = [row for row in rows if row.side.peer is None]
            names = [row.side.label.removeprefix("rltrain, ") for row in own]
            columns = ("", "per s", *(f"rltrain, {name} / it" for name in names), "fastest setting")
            table = Table(TITLES[work], columns)
            for row in rows:
                ratios: list[Cell] = [ratio(each.rate, row.rate) for each in own]
                table.rows.append((row.side.label, _or_reason(row.rate, row), *ratios, _setting(row)))
        return table


def _or_reason(figure: Figure, row: Row) -> Cell:
    """The figure; without values, why there are none, in few words: the whole is a note."""
    if figure.values or not row.reason:
        return figure
    return "not installed" if row.reason.startswith("not installed") else "failed"


def _setting(row: Row) -> str:
    return written(row.chosen) if row.chosen else ""
