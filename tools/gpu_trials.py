"""The part of `tools/gpu_check.py` that measures: short runs in every schedule, and how busy the GPU was meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rltrain.bench.command import OverdueError, run_to_end
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
LEAST_ARTICLE_S = 60.0
ARTICLE_S = 120.0
"""Kept for `rltrain bench article --quick`: twelve runs of a second, each with a start of up to `BOOT_S`."""
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
                with utilisation(used_gpu()) as samples:
                    subject.trials[schedule] = self._run(ROOT / "configs" / subject.config, overrides, seconds)
                end_s = time.monotonic() - _END_S
            except TrialError as error:
                self.failures.append(f"{name}: {error}")
                continue
            busy = mean_busy(samples, end_s - seconds, end_s)
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


Sample = tuple[float, float | None]
"""(monotonic time in seconds, utilisation of the GPU in percent)."""


def used_gpu() -> str | None:
    """Return NVML's UUID of the device that the runs are on, `cuda:0`; None without a device.

    NVML numbers all GPUs of the machine in an order of its own; CUDA those of `CUDA_VISIBLE_DEVICES`, in another one.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    return f"GPU-{torch.cuda.get_device_properties(str(ONE_PASS['learner.device'])).uuid}"


@contextlib.contextmanager
def utilisation(uuid: str | None) -> Iterator[list[Sample]]:
    """Sample one GPU on a thread, inside; the list grows meanwhile, and stays empty where NVML has no such GPU."""
    samples: list[Sample] = []
    stop, monitor = threading.Event(), GpuMonitor()

    def look() -> None:
        while not stop.wait(_SAMPLE_S):
            now = time.monotonic()
            samples.extend((now, gpu.utilisation_percent) for gpu in monitor.read() if gpu.uuid == uuid is not None)

    thread = threading.Thread(target=look, name="gpu-utilisation")
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
        monitor.close()


def mean_busy(samples: Sequence[Sample], start_s: float, end_s: float) -> float | None:
    """Return the mean utilisation between two times; None without a figure."""
    known = [busy for at_s, busy in samples if start_s <= at_s <= end_s and busy is not None]
    return sum(known) / len(known) if known else None


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
            done = run_to_end(command, left_s, Path(folder), signal.SIGINT)  # ends its run, says what it has
        except OverdueError:
            tables = judged_article(0, "", result.read_text())[0] if result.is_file() else []
            return tables, None, f"{name}: not done within the {left_s:.0f} s that were left"
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
