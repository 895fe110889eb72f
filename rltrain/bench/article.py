"""`rltrain bench article`: the promise "30 % faster, utilisation 45 % to 78-80 %, convergence 1.5 x", tried.

Two scenarios, each with the conventional loop (`bench.conventional`, at its best) and with rltrain: thousands of cheap
envs sampled side by side, and a few envs whose steps take 1 to 20 ms, each its own. All sides of a scenario have the
same envs, network and update; they take turns, so that all meet the same machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltrain.bench.article_report import MANY, UNEVEN, Result, report_of
from rltrain.bench.conventional import conventional
from rltrain.bench.figures import alternate
from rltrain.bench.pipeline import changed, schedule_changes
from rltrain.bench.report import Report
from rltrain.bench.suite import Progress, Tell
from rltrain.bench.trial import BOOT_S, ENDLESS, Trial, as_options, run_trial
from rltrain.config.load import load
from rltrain.config.machine import usable_cores

ARTICLE_ENVS = 2048
COMMON: dict[str, object] = {
    "run.total_env_steps": ENDLESS, "algo.ppo.discount": 0.98, "algo.ppo.gae_lambda": 0.9,
    "algo.ppo.entropy_coef": 0.0,
}  # fmt: skip
TARGETS = {
    MANY: {"run.target_return": 475.0, "run.target_window": 100},
    UNEVEN: {"run.target_return": 100.0, "run.target_window": 20},
}
PILOTS, PILOT_EPOCHS, MOST_EPOCHS = 2, 4, 60
MINIBATCH_ROWS = 2048
MANY_FRAGMENT = 16
QUEUE_DELAY_US = 2000
CONFIGS = {MANY: '[env]\nid = "CartPole-v1"\n', UNEVEN: '[env]\nid = "UnevenCartPole"\n'}


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        turns: repeats of everything.
        seconds: of one measurement of speed.
        env_counts: cheap envs, ascending; `ARTICLE_ENVS` is among them, and what the loops are compared with.
        uneven_envs: envs with slow steps, a power of two.
        uneven_fragment: T with them, in env steps.
        target_limit_s: longest time to the return threshold that is waited for, in seconds; None: not measured.
        is_pilot: whether the epochs of the second scenario are found by a short run first.
        thread_counts: torch threads of the conventional loop.
    """

    turns: int = 3
    seconds: float = 8.0
    env_counts: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    uneven_envs: int = 16
    uneven_fragment: int = 16
    target_limit_s: float | None = 60.0
    is_pilot: bool = True
    thread_counts: tuple[int, ...] = field(default_factory=lambda: tuple(sorted({1, usable_cores()})))

    @classmethod
    def quick(cls) -> Plan:
        """One short turn without times to the threshold: less than a minute where little else runs."""
        return cls(1, 1.0, (512, 1024, 2048), 8, 8, None, False)


def many_envs(num_envs: int) -> dict[str, object]:
    """Return the options for so many cheap envs: two groups an actor, batches of half of them, one pass.

    Minibatches have the same number of rows whatever the number of envs, so that a row costs the same.
    """
    actors = 1
    while 2 * actors <= min(usable_cores() - 2, 8):
        actors *= 2
    return COMMON | {
        "actors.num_actors": actors, "actors.groups_per_actor": 2, "actors.envs_per_group": num_envs // (2 * actors),
        "pipeline.fragment_length": MANY_FRAGMENT, "pipeline.max_batch_size": num_envs // 2,
        "pipeline.max_queue_delay_us": QUEUE_DELAY_US, "algo.ppo.learning_rate": 3e-3, "algo.ppo.epochs": 1,
        "algo.ppo.num_minibatches": max(1, num_envs * MANY_FRAGMENT // MINIBATCH_ROWS),
    }  # fmt: skip


def uneven_envs(num_envs: int, fragment_length: int) -> dict[str, object]:
    """Return the options for so many envs with slow steps: one to an actor, so that none waits for another."""
    return COMMON | {
        "actors.num_actors": num_envs, "actors.groups_per_actor": 1, "actors.envs_per_group": 1,
        "pipeline.fragment_length": fragment_length, "model.hidden_sizes": (256, 256),
        "algo.ppo.learning_rate": 1e-3, "algo.ppo.epochs": 10, "algo.ppo.num_minibatches": 4,
    }  # fmt: skip


class ArticleBench:
    """Measures a plan.

    Args:
        plan: what to measure.
        trial: runs rltrain; `bench.trial.run_trial`.
        loop: runs the conventional loop; `bench.conventional.conventional`.
    """

    def __init__(
        self, plan: Plan, trial: Callable[..., Trial] = run_trial,
        loop: Callable[..., dict[str, float | None]] = conventional,
    ):  # fmt: skip
        self.plan, self._trial, self._loop = plan, trial, loop
        self.epochs = 10
        """Of the second scenario."""
        self.results = [*self._many(), *self._uneven()]
        self._configs: dict[str, Path] = {}

    def _many(self) -> list[Result]:
        loops = [
            Result(MANY, f"conventional, {'plain torch, ' if is_plain else ''}{_threads(n)}", many_envs(ARTICLE_ENVS),
                   num_threads=n, num_envs=ARTICLE_ENVS, is_plain=is_plain)
            for is_plain in (True, False) for n in self.plan.thread_counts
        ]  # fmt: skip
        return loops + [
            Result(MANY, "rltrain, overlap" if n == ARTICLE_ENVS else f"rltrain, {n:,} envs",
                   many_envs(n) | {"pipeline.schedule": "overlap"}, num_envs=n)
            for n in self.plan.env_counts
        ]  # fmt: skip

    def _uneven(self) -> list[Result]:
        n = self.plan.uneven_envs
        options = uneven_envs(n, self.plan.uneven_fragment)
        loops = [
            Result(UNEVEN, f"conventional, {how}, {_threads(threads)}", options | more, num_threads=threads, num_envs=n)
            for how, more in (
                ("one by one", {}), ("parallel envs", {"env.id": "UnevenCartPoleParallel"}),
            ) for threads in self.plan.thread_counts
        ]  # fmt: skip
        whole_batches = {"learner.min_batch_fragments": n, "learner.max_batch_fragments": n}
        return loops + [
            Result(UNEVEN, f"rltrain, {schedule}", options | {"pipeline.schedule": schedule} | more, num_envs=n)
            for schedule, more in (("sync", {}), ("overlap", {}), ("async", whole_batches))
        ]

    @property
    def expected_s(self) -> float:
        """A guess of how long it takes, in seconds."""
        each = self.plan.seconds + BOOT_S
        targets = 0.0 if self.plan.target_limit_s is None else 2 * 15 + self.plan.target_limit_s + 4 * 20
        return self.plan.turns * (len(self.results) * each + targets) + PILOTS * each * self.plan.is_pilot

    def run(self, tell: Tell) -> None:
        """Measure everything: first speeds, in turns, then times to the thresholds, in turns."""
        progress = Progress(tell, self.expected_s)
        with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
            for scene, text in CONFIGS.items():
                self._configs[scene] = Path(folder) / f"{scene.split()[0]}.toml"
                self._configs[scene].write_text(text)
            if self.plan.is_pilot:
                progress.say("how long an epoch takes beside sampling")
                self._find_epochs()
                progress.advance(PILOTS * (self.plan.seconds + BOOT_S), "speeds")
            each_s = self.plan.seconds + BOOT_S
            sides = [(result.rate, self._speed_of(result, progress)) for result in self.results]
            alternate(self.plan.turns, sides, lambda: progress.advance(each_s, "speeds"))
            if self.plan.target_limit_s is not None:
                racing = self.racing()
                for turn in range(self.plan.turns):
                    for result in racing if turn % 2 == 0 else racing[::-1]:
                        progress.say(f"to the return threshold: {result.label}")
                        self._race(result, turn)
                        progress.advance((self.expected_s * 0.3) / len(racing) / self.plan.turns, result.label)

    def racing(self) -> list[Result]:
        """Return whose time to the threshold is measured: rltrain, and each conventional loop at its best threads."""
        found: dict[tuple[str, str], Result] = {}
        for result in self.results:
            if result.num_threads is None and result.num_envs in (ARTICLE_ENVS, self.plan.uneven_envs):
                found[result.scene, result.label] = result
            elif result.num_threads is not None:
                key = result.scene, result.label.rpartition(",")[0]
                best = found.get(key)
                if best is None or (result.rate.median or 0) > (best.rate.median or 0):
                    found[key] = result
        return list(found.values())

    def report(self, record: dict[str, Any]) -> Report:
        """Return what was measured so far."""
        plan = self.plan
        how = (
            f"{plan.turns} turns of {plan.seconds:g} s each that alternate, medians (lowest to highest), from the end "
            f"of the first update on. {MANY}: {ARTICLE_ENVS:,} of CartPole-v1's own vector env, T {MANY_FRAGMENT}, one "
            f"pass, minibatches of {MINIBATCH_ROWS:,} rows. {UNEVEN}: {plan.uneven_envs} envs, T "
            f"{plan.uneven_fragment}, steps log-uniform from 1 to 20 ms, network 256 x 256, {self.epochs} epochs of 4 "
            + ("minibatches, so many that an update takes as long as sampling its batch in `sync` (two runs before)."
               if plan.is_pilot else "minibatches.")
        )  # fmt: skip
        return report_of(self.results, how, record, plan.target_limit_s, ARTICLE_ENVS)

    def _find_epochs(self) -> None:
        """Choose as many epochs as take the time in which a batch is sampled; the second run corrects the first."""
        options = uneven_envs(self.plan.uneven_envs, self.plan.uneven_fragment) | {"pipeline.schedule": "sync"}
        self.epochs = PILOT_EPOCHS
        for _ in range(PILOTS):
            trial = self._trial(self._configs[UNEVEN], options | {"algo.ppo.epochs": self.epochs}, self.plan.seconds)
            update, sampling = trial.share("learner", "update"), trial.learner_idle_share
            self.epochs = min(MOST_EPOCHS, max(1, round(self.epochs * sampling / update)))

    def _options(self, result: Result) -> Mapping[str, object]:
        options = dict(result.options) | ({"algo.ppo.epochs": self.epochs} if result.scene == UNEVEN else {})
        if options.get("pipeline.schedule") != "async":
            return options
        config = load(self._configs[result.scene], as_options(options)[1::2]).config
        return changed(options, schedule_changes(config, "async"))

    def _speed_of(self, result: Result, progress: Progress) -> Callable[[], float]:
        def measure() -> float:
            progress.say(f"{result.scene}: {result.label}")
            config, options = self._configs[result.scene], self._options(result)
            if result.num_threads is None:
                return result.add_trial(self._trial(config, options, self.plan.seconds))
            return result.add_loop(
                self._loop(config, options, self.plan.seconds, result.num_threads, is_plain=result.is_plain)
            )

        return measure

    def _race(self, result: Result, turn: int) -> None:
        """Measure one time to the threshold, each turn with another seed."""
        limit_s = self.plan.target_limit_s
        assert limit_s is not None, "not called otherwise"
        options = {**self._options(result), **TARGETS[result.scene], "run.seed": turn + 1}
        config = self._configs[result.scene]
        if result.num_threads is None:
            summary = self._trial(config, options, limit_s, is_endless=False).summary
            seconds = float(summary["duration_s"]) if summary["reason"] == "target" else None
        else:
            found = self._loop(config, options, limit_s, result.num_threads, to_target=True, is_plain=result.is_plain)
            seconds = found["seconds_to_target"]
        result.add_time(seconds, limit_s)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
