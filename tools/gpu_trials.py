"""The part of `tools/gpu_check.py` that measures: short runs in every schedule, and how busy the GPU was meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rltrain.bench.figures import Figure
from rltrain.bench.report import Cell, Chart, Table
from rltrain.bench.trial import Trial, TrialError, run_trial
from rltrain.config.machine import usable_cores
from rltrain.telemetry.gpu import GpuMonitor

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES = ("sync", "overlap", "async")
BOOT_S = 9.0
"""From the start of a run to its first update, CUDA in two processes included, and from its last to its end."""
SHORTEST_S, LONGEST_S = 4.0, 15.0
"""Seconds of training in one run."""
LEAST_ARTICLE_S = 30.0
_END_S = 1.0
"""From the last update to the end of the command."""
_SAMPLE_S = 0.2
ONE_PASS = {"algo.ppo.epochs": 1, "learner.device": "cuda:0"}


@dataclass
class Subject:
    """What is trained, and what was found, by schedule.

    Args:
        name: as in the tables.
        config: file in `configs/`.
        overrides: option path -> value.
        needs: module without which it cannot run, or None.
    """

    name: str
    config: str
    overrides: dict[str, object]
    needs: str | None = None
    trials: dict[str, Trial] = field(default_factory=dict)
    busy_percent: dict[str, float] = field(default_factory=dict)


def subjects(cores: int) -> list[Subject]:
    """Return what is measured on a machine with so many cores, the most telling first."""
    many = {**ONE_PASS, "actors.num_actors": 2, "actors.envs_per_group": 1024, "algo.ppo.num_minibatches": 8}
    pong = {
        **ONE_PASS, "actors.num_actors": max(1, min(8, cores // 2)), "actors.envs_per_group": 16,
        "learner.precision": "bfloat16",
    }  # fmt: skip
    return [
        Subject("CartPole, 4,096 envs", "cartpole.toml", many),
        Subject("CartPole, 4,096 envs, MLP 1024 x 1024", "cartpole.toml", many | {"model.hidden_sizes": [1024, 1024]}),
        Subject("Pong, Nature CNN, bfloat16", "pong.toml", pong, "ale_py"),
        Subject("Pong, IMPALA CNN, bfloat16", "pong.toml", pong | {"model.kind": "impala_cnn"}, "ale_py"),
    ]


def seconds_for(left_s: float, num_left: int) -> float | None:
    """Return how long the next of some runs may train; None where the time left is not enough for one."""
    if left_s < BOOT_S + SHORTEST_S:
        return None
    return min(LONGEST_S, max(SHORTEST_S, left_s / num_left - BOOT_S))


class Trials:
    """Runs every subject in every schedule, as far as time allows.

    Args:
        left_s: returns the seconds that are left.
        run: makes one run.
    """

    def __init__(self, left_s: Callable[[], float], run: Callable[..., Trial] = run_trial):
        self._left_s, self._run = left_s, run
        self.subjects = subjects(usable_cores())
        self.failures: list[str] = []
        self.left_out: list[str] = []

    def run(self, tell: Callable[[str], None]) -> None:
        """Measure; `tell` hears of what begins."""
        missing = {s.needs for s in self.subjects if s.needs and importlib.util.find_spec(s.needs) is None}
        self.left_out += [f"{s.name}: {s.needs} is not installed" for s in self.subjects if s.needs in missing]
        self.subjects = [s for s in self.subjects if s.needs not in missing]
        cells = [(subject, schedule) for subject in self.subjects for schedule in SCHEDULES]
        for i, (subject, schedule) in enumerate(cells):
            name = f"{subject.name}, {schedule}"
            seconds = seconds_for(self._left_s(), len(cells) - i)
            if seconds is None:
                self.left_out.append(f"{name}: no time was left")
                continue
            tell(name)
            overrides = {**subject.overrides, "pipeline.schedule": schedule}
            try:
                with utilisation() as samples:
                    subject.trials[schedule] = self._run(ROOT / "configs" / subject.config, overrides, seconds)
                end_s = time.monotonic() - _END_S
            except TrialError as error:
                self.failures.append(f"{name}: {error}")
                continue
            busy = busiest(samples, end_s - seconds, end_s)
            if busy is not None:
                subject.busy_percent[schedule] = busy

    def tables(self) -> list[Table]:
        """Return what was found."""
        return [
            self._table("Env steps learned a second", _speed),
            self._table("GPU utilisation while training, mean, %", _busy),
            self._table("Learner waits for data, % of its time", _idle),
        ]

    def charts(self) -> list[Chart]:
        """Return the speeds as pictures, one for each subject: they are of different orders."""
        return [
            Chart(s.name, "schedule", "env steps learned a second", {"": [(x, _speed(s, x)) for x in SCHEDULES]})
            for s in self.subjects
        ]

    def _table(self, title: str, figure: Callable[[Subject, str], Figure]) -> Table:
        rows: list[tuple[Cell, ...]] = [(s.name, *(figure(s, x) for x in SCHEDULES)) for s in self.subjects]
        return Table(title, ("", *SCHEDULES), rows)


def _speed(subject: Subject, schedule: str) -> Figure:
    trial = subject.trials.get(schedule)
    return Figure("env steps/s", [] if trial is None else [trial.env_steps_per_s])


def _idle(subject: Subject, schedule: str) -> Figure:
    trial = subject.trials.get(schedule)
    return Figure("%", [] if trial is None else [100 * trial.learner_idle_share])


def _busy(subject: Subject, schedule: str) -> Figure:
    busy = subject.busy_percent.get(schedule)
    return Figure("%", [] if busy is None else [busy])


Sample = tuple[float, tuple[float | None, ...]]
"""(monotonic time in seconds, utilisation of each GPU in percent)."""


@contextlib.contextmanager
def utilisation() -> Iterator[list[Sample]]:
    """Sample all GPUs on a thread, inside; the list grows meanwhile."""
    samples: list[Sample] = []
    stop, monitor = threading.Event(), GpuMonitor()

    def look() -> None:
        while not stop.wait(_SAMPLE_S):
            samples.append((time.monotonic(), tuple(gpu.utilisation_percent for gpu in monitor.read())))

    thread = threading.Thread(target=look, name="gpu-utilisation")
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        monitor.close()


def busiest(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """Return the mean utilisation of the GPU that was busiest between two times; None without a figure."""
    seen = [gpus for at_s, gpus in samples if start_s <= at_s <= end_s]
    means = []
    for i in range(max(map(len, seen), default=0)):
        known = [x for gpus in seen if i < len(gpus) and (x := gpus[i]) is not None]
        means += [sum(known) / len(known)] if known else []
    return max(means, default=None)


def article(left_s: float) -> tuple[list[Table], str | None, str | None]:
    """Run `rltrain bench article --quick`.

    Returns:
        (its tables; why it failed, or None; why it was left out, or None).
    """
    name = "rltrain bench article"
    if left_s < LEAST_ARTICLE_S:
        return [], None, f"{name}: no time was left"
    with tempfile.TemporaryDirectory(prefix="rltrain-gpu-check-") as folder:
        result = Path(folder) / "article.json"
        command = [sys.executable, "-m", "rltrain", "bench", "article", "--quick", "--json", str(result)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left_s, cwd=folder, check=False)
        except subprocess.TimeoutExpired:
            return [], None, f"{name}: not done within the {left_s:.0f} s that were left"
        return judged_article(done.returncode, done.stderr, result.read_text() if result.is_file() else None)


def judged_article(code: int, said: str, found: str | None) -> tuple[list[Table], str | None, str | None]:
    """Return as `article`, from the exit code, standard error and JSON of the command."""
    name = "rltrain bench article"
    if code == 2 and "No such command" in said:
        return [], None, f"{name}: this version of rltrain has no such command"
    if code or found is None:
        return [], f"{name} ended with {code}: {' / '.join(said.strip().splitlines()[-4:])}", None
    return [_table_of(table) for table in json.loads(found)["tables"]], None, None


def _table_of(table: dict) -> Table:
    """Return a table as it was before `bench.report.as_json`."""
    rows = [
        tuple(x if isinstance(x, str) else Figure(x["unit"], x["values"], x["note"]) for x in row)
        for row in table["rows"]
    ]
    return Table(table["title"], tuple(table["columns"]), rows)
