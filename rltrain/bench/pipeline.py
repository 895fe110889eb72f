"""`rltrain bench pipeline`: schedules, inference modes and prefetch of one configuration beside a conventional loop.

All sides take turns. The conventional loop is `bench/conventional.py`, at each number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.bench.conventional import conventional
from rltrain.bench.figures import Figure, ratio
from rltrain.bench.report import Cell, Chart, Report, Table
from rltrain.bench.suite import Progress, Tell
from rltrain.bench.trial import BOOT_S, as_options, run_trial
from rltrain.config.algorithms import AppoConfig, PpoConfig
from rltrain.config.load import load
from rltrain.config.machine import usable_cores
from rltrain.config.schema import Config

SCHEDULES = ("sync", "overlap", "async")
_THRESHOLD_S = 120.0
"""Longest time in which a side may come to the target return."""


@dataclass(frozen=True)
class Plan:
    """How long is measured.

    Args:
        turns: of everything.
        turn_s: of a side, its start included.
        threshold_turns: how often each side trains to the target return, with seeds 1, 2, ...; 0 not at all.
    """

    turns: int = 5
    turn_s: float = 8.0
    threshold_turns: int = 3

    @classmethod
    def quick(cls) -> Plan:
        """Less than a minute."""
        return cls(turns=1, turn_s=3.0, threshold_turns=0)


class _Side:
    """One way to train: what is measured of it."""

    def __init__(self, label: str, measure: Callable[[float], dict[str, float | None]], reach: Callable[[int], float]):
        self.label, self.measure, self.reach = label, measure, reach
        self.rate, self.seconds = Figure("env steps/s"), Figure("s")
        self.idle, self.busy = Figure("%"), Figure("%")

    def take_turn(self, seconds: float) -> None:
        """Measure once."""
        found = self.measure(seconds)
        for name, figure, scale in (("rate", self.rate, 1), ("idle", self.idle, 100), ("busy", self.busy, 100)):
            value = found.get(name)
            if value is not None:
                figure.values.append(scale * value)


class PipelineBench:
    """The bench.

    Args:
        config: TOML file.
        overrides: option path -> value, over the file's.
        plan: how long.

    Raises:
        ConfigError: the configuration is wrong.
    """

    def __init__(self, config: Path, overrides: Mapping[str, object], plan: Plan):
        self.path, self.overrides, self.plan = config, dict(overrides), plan
        self.config = load(config, as_options(overrides)[1::2]).config
        self.has_target = self.config.run.target_return is not None and plan.threshold_turns > 0
        self.has_gpu = False
        self.sides = [*self._conventional_sides(), *self._own_sides()]

    def _conventional_sides(self) -> list[_Side]:
        if self.config.algo.chosen.source != "fresh":
            return []
        cores = usable_cores()
        as_fast = [self._conventional(threads) for threads in dict.fromkeys((1, cores))]
        return [*as_fast, self._conventional(cores, is_plain=True)]

    def _conventional(self, threads: int, is_plain: bool = False) -> _Side:
        def measure(seconds: float) -> dict[str, float | None]:
            options = {**self.overrides, "run.target_return": None}
            found = conventional(self.path, options, seconds, threads, is_plain=is_plain)
            share = found["update_share"]
            idle = None if share is None else 1 - share
            return {"rate": found["env_steps_per_s"], "idle": idle, "busy": found["busy_share"]}

        def reach(seed: int) -> float:
            found = conventional(
                self.path, {**self.overrides, "run.seed": seed}, _THRESHOLD_S, threads, True, is_plain
            )
            return found["seconds_to_target"] or _THRESHOLD_S

        plain = ", plain torch" if is_plain else ""
        return _Side(f"conventional loop, {threads} thread{'s' if threads > 1 else ''}{plain}", measure, reach)

    def _own_sides(self) -> list[_Side]:
        sides = []
        for schedule in SCHEDULES:
            changes = schedule_changes(self.config, schedule)
            for inference in ("server", "local"):
                mode: dict[str, object] = {**changes, "pipeline.inference": inference}
                if self.config.algo.chosen.source == "replay":
                    for prefetch in (True, False):
                        label = f"{schedule}, {inference}, prefetch {'on' if prefetch else 'off'}"
                        sides.append(self._own(label, {**mode, "replay.prefetch": prefetch}))
                else:
                    sides.append(self._own(f"{schedule}, {inference}", mode))
        return sides

    def _own(self, label: str, changes: Mapping[str, object]) -> _Side:
        options = changed(self.overrides, changes)

        def measure(seconds: float) -> dict[str, float | None]:
            trial = run_trial(self.path, options, seconds)
            self.has_gpu |= trial.has_gpu
            return {"rate": trial.env_steps_per_s, "idle": trial.learner_idle_share, "busy": trial.device_busy_share}

        def reach(seed: int) -> float:
            trial = run_trial(self.path, {**options, "run.seed": seed}, _THRESHOLD_S, is_endless=False)
            return float(trial.summary["duration_s"]) if trial.summary["reason"] == "target" else _THRESHOLD_S

        return _Side(label, measure, reach)

    def run(self, tell: Tell) -> None:
        """Measure everything."""
        plan, sides = self.plan, self.sides
        each_s, reach_s = BOOT_S + plan.turn_s, BOOT_S + 10.0
        thresholds = plan.threshold_turns if self.has_target else 0
        progress = Progress(tell, len(sides) * (plan.turns * each_s + thresholds * reach_s))
        for turn in range(plan.turns):
            for side in sides if turn % 2 == 0 else sides[::-1]:
                progress.say(f"turn {turn + 1} of {plan.turns}: {side.label}")
                side.take_turn(plan.turn_s)
                progress.advance(each_s, side.label)
        for seed in range(1, thresholds + 1):
            for side in sides:
                progress.say(f"to a return of {self.config.run.target_return:g}, seed {seed}: {side.label}")
                side.seconds.values.append(side.reach(seed))
                progress.advance(reach_s, side.label)

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        busy = "device busy" if self.has_gpu else "device busy (CPU learner and server)"
        target = self.config.run.target_return
        columns = ["", "env steps/s", "of sync", "of the best conventional", "learner idle %", f"{busy} %"]
        columns += [f"s to a return of {target:g}"] if self.has_target else []
        table = Table("the ways to train", tuple(columns))
        sync = _best(side for side in self.sides if side.label.startswith("sync"))
        loop = _best(side for side in self.sides if side.label.startswith("conventional"))
        for side in self.sides:
            ratios = [ratio(side.rate, other.rate) if other else Figure("x") for other in (sync, loop)]
            cells: list[Cell] = [side.rate, *ratios, side.idle, side.busy]
            table.rows.append((side.label, *cells, *([side.seconds] if self.has_target else [])))
        bars: list[tuple[str | float, Figure]] = [(side.label.replace(", ", "\n"), side.rate) for side in self.sides]
        charts = [Chart("env steps learned a second", "", "env steps/s", {"": bars})]
        report = Report(
            f"rltrain bench pipeline {self.path}",
            f"medians of {self.plan.turns} turns of {self.plan.turn_s:g} s that alternate, (lowest to highest); ratios "
            "turn by turn",
            record, [table], charts,
        )
        if any(value >= _THRESHOLD_S for side in self.sides for value in side.seconds.values):
            report.notes.append(f"{_THRESHOLD_S:g} s to the return: it was not reached by then")
        report.notes.append(
            "the conventional loop has rltrain's fast layers and memory too; as plain torch it has torch's own"
        )
        report.notes.append("device busy: at least; of rltrain the larger of the learner's and the server's share")
        if not self.has_gpu:
            report.notes.append("no GPU: learner and inference run on the CPU, and so compete with the envs for cores")
        return report


def _best(sides: Any) -> _Side | None:
    """The side with the highest median."""
    return max((side for side in sides if side.rate.values), key=lambda side: side.rate.median, default=None)


def schedule_changes(config: Config, schedule: str) -> dict[str, object]:
    """Return what a schedule asks for; `async` trains on-policy algorithms with V-trace, on the same passes."""
    changes: dict[str, object] = {"pipeline.schedule": schedule}
    chosen = config.algo.chosen
    if schedule == "async" and isinstance(chosen, PpoConfig):
        shared = set(AppoConfig.model_fields) & set(PpoConfig.model_fields)
        changes |= {"algo.name": "appo"} | {f"algo.appo.{name}": getattr(chosen, name) for name in sorted(shared)}
        columns = int(config.learner.min_batch_fragments) * config.actors.envs_per_group
        changes["algo.appo.num_minibatches"] = min(chosen.num_minibatches, columns)  # whole env columns
    elif schedule != "async":
        changes |= {"pipeline.adaptive": "auto", "pipeline.when_full": "block"}
    return changes


def changed(overrides: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return overrides with changes over them, without those of an algorithm that is no longer the one."""
    kept = {p: v for p, v in overrides.items() if not (p.startswith("algo.") and "algo.name" in changes)}
    return {**kept, **changes}
