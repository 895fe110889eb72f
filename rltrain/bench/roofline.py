"""`rltrain bench roofline`: each stage of a configuration alone, the limit that follows, and what the pipeline makes.

In each turn the stages are measured and then the whole pipeline, so that both meet the same machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltrain.bench.figures import Figure
from rltrain.bench.report import Chart, Report, Table
from rltrain.bench.stages import NUM_STAGES, Stages, measure_stages
from rltrain.bench.suite import Progress, Tell
from rltrain.bench.trial import BOOT_S, Trial, as_options, run_trial
from rltrain.config.load import load
from rltrain.config.machine import usable_cores
from rltrain.config.schema import EnvSection
from rltrain.errors import ConfigError

NULL = "null"
"""Name of the env, the model and the algorithm that do nothing."""
_STAGES_BOOT_S = 4.0
"""Imports, envs and the batches that the update is measured on; for the time left."""


@dataclass(frozen=True)
class Plan:
    """How long is measured.

    Args:
        turns: of everything.
        stage_s: each stage alone.
        pipeline_s: the pipeline, its start included.
    """

    turns: int = 5
    stage_s: float = 1.0
    pipeline_s: float = 8.0

    @classmethod
    def quick(cls) -> Plan:
        """Less than a minute."""
        return cls(turns=2, stage_s=0.4, pipeline_s=4.0)


@dataclass
class _Found:
    """What the turns brought."""

    stages: list[Stages] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    plumbing: list[Trial] = field(default_factory=list)


class Roofline:
    """The bench. `overrides` are over the file's options.

    Args:
        config: TOML file.
        overrides: option path -> value.
        plan: how long.

    Raises:
        ConfigError: the configuration is wrong, or its algorithm learns from a replay.
    """

    def __init__(self, config: Path, overrides: Mapping[str, object], plan: Plan):
        self.path, self.overrides, self.plan = config, overrides, plan
        self.config = load(config, as_options(overrides)[1::2]).config
        if self.config.algo.chosen.source != "fresh":
            raise ConfigError(
                f'algo.name = "{self.config.algo.name}" learns from a replay, whose updates follow from '
                "replay.updates_per_env_step. Accepted: ppo, appo; rltrain bench replay measures the replay itself."
            )
        self.cores = usable_cores()
        self._found = _Found()

    def run(self, tell: Tell) -> None:
        """Measure everything."""
        plan, found = self.plan, self._found
        stages_s, trial_s = _STAGES_BOOT_S + NUM_STAGES * plan.stage_s, BOOT_S + plan.pipeline_s
        progress = Progress(tell, plan.turns * (stages_s + 2 * trial_s))
        for turn in range(plan.turns):
            of = f"turn {turn + 1} of {plan.turns}"
            progress.say(f"{of}: each stage alone")
            found.stages.append(measure_stages(self.path, self.overrides, plan.stage_s))
            progress.advance(stages_s, f"{of}: the pipeline")
            found.trials.append(run_trial(self.path, self.overrides, plan.pipeline_s))
            progress.advance(trial_s, f"{of}: the plumbing")
            found.plumbing.append(run_trial(self.path, self._null(), plan.pipeline_s))
            progress.advance(trial_s, of)

    def _null(self) -> dict[str, object]:
        """Stand-ins that do nothing, with the observations and actions of the env."""
        env = self.config.env.model_dump(mode="json", exclude_none=True)
        kept = {path: value for path, value in self.overrides.items() if not path.startswith(("algo.", "model."))}
        stand_ins = {"env.id": NULL, "env.kwargs": {"like": env}, "model.kind": NULL, "algo.name": NULL}
        return {**kept, **_plain_env(), **stand_ins}

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured."""
        config, found, cores = self.config, self._found, self.cores
        actors = int(config.actors.num_actors)
        limits = [self._limit(stages) for stages in found.stages]
        rates = [trial.env_steps_per_s for trial in found.trials]
        shares = [rate / limit for rate, (limit, _) in zip(rates, limits, strict=False)]
        rate, limit = Figure("env steps/s", rates), Figure("env steps/s", [value for value, _ in limits])
        plumbing = Figure("env steps/s", [trial.env_steps_per_s for trial in found.plumbing])
        whole = Table(
            "the pipeline, env steps learned a second", ("", "env steps/s", "of the limit"),
            [
                ("limit", limit, ""),
                ("achieved", rate, Figure("x", shares)),
                ("plumbing alone", plumbing, ""),
            ],
        )
        report = Report(
            f"rltrain bench roofline {self.path}",
            f"medians of {self.plan.turns} turns, (lowest to highest); each stage alone for {self.plan.stage_s:g} s, "
            f"the pipeline for {self.plan.pipeline_s:g} s; actors: {actors}, cores: {cores}, learner threads: "
            f"{config.learner.num_threads}",
            record, [whole, self._stage_table(actors)], [self._chart(actors, rate)],
        )
        if limits:
            bounds = [bound for _, bound in limits]
            report.notes.append(f"the limit is that of: {max(set(bounds), key=bounds.count)}")
        if found.trials:
            report.notes.append(f"the pipeline says: {found.trials[-1].verdict}")
        report.notes.append(
            "plumbing alone: an env, a policy and a learner that do nothing, with observations and actions of the same "
            "shapes: what rings, mailboxes, server and copies could carry"
        )
        return report

    def _stage_table(self, actors: int) -> Table:
        table = Table("each stage alone", ("", "us of an env step", "env steps/s of it"))
        for label, seconds in self._stages():
            rates = [1 / s for s in seconds if s > 0]
            table.rows.append((label, Figure("us", [1e6 * s for s in seconds]), Figure("env steps/s", rates)))
        return table

    def _stages(self) -> list[tuple[str, list[float]]]:
        found = self._found.stages
        rows = [
            ("env step, one actor", [s.env for s in found]),
            ("env step, CPU time", [s.env_cpu for s in found]),
        ]
        for size in found[0].inference if found else ():
            rows.append((f"policy, batch of {size:,}", [s.inference[size] for s in found]))
        return [
            *rows,
            ("update, with the learner's threads", [s.update for s in found]),
            ("update, one thread", [s.update_cpu for s in found]),
            ("gathers and copies", [s.transfer for s in found]),
            ("weight publication", [s.publish for s in found]),
        ]

    def _limit(self, stages: Stages) -> tuple[float, str]:
        """What the pipeline could do with the devices that its runs had, and what binds."""
        trials = self._found.trials
        return stages.limit(
            int(self.config.actors.num_actors), self.cores,
            all(trial.is_policy_on_cpu for trial in trials), all(trial.is_learner_on_cpu for trial in trials),
        )  # fmt: skip

    def _chart(self, actors: int, rate: Figure) -> Chart:
        """What each could do by itself, and what all together do."""
        found = self._found.stages
        bars: list[tuple[str | float, Figure]] = [
            ("envs", Figure("", [actors / s.env for s in found])),
            ("policy", Figure("", [1 / s.best_inference for s in found])),
            ("update", Figure("", [1 / s.update for s in found])),
            ("the pipeline", rate),
        ]
        chart = Chart("what each stage could do alone, and what all do together", "", "env steps/s", {"": bars})
        if found:
            limit = sorted(self._limit(stages)[0] for stages in found)[len(found) // 2]
            chart.limits["limit"] = limit
        return chart


def _plain_env() -> dict[str, object]:
    """The options of an env section as they are when nobody sets them."""
    options = EnvSection(id="any").model_dump(mode="json", exclude={"id", "kwargs"})
    return {f"env.{name}": value for name, value in options.items()}
