"""Whole runs for tests: the real command line in its own processes, waited for with deadlines.

Start several before the first is finished where a test needs several: most of a short run is its boot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "rltrain")
LIMIT_S = 90.0
"""Longest wait for anything: a loaded machine is slower than an idle one by a factor of ten."""
MARK = "RLTRAIN_TEST_MARK"
SMALL = {
    "run.total_env_steps": 1024,
    "actors.num_actors": 2,
    "actors.groups_per_actor": 2,
    "actors.envs_per_group": 2,
    "pipeline.fragment_length": 16,
    "model.hidden_sizes": [16],
    "learner.device": "cpu",
}
"""128 env steps in a batch."""


def toy(name: str, **kwargs: Any) -> dict[str, Any]:
    """Return the options that choose one of `tests/toy_envs.py`."""
    options = {f"env.kwargs.{key}": value for key, value in kwargs.items()}
    return {"env.id": f"tests.toy_envs:{name}", **options}


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Poll until a condition holds and return its value; AssertionError names `what` did not come in time."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Ended:
    """What is left of a run that ended."""

    returncode: int
    stdout: str
    stderr: str
    directory: Path
    """The working directory it was started in."""

    @cached_property
    def folder(self) -> Path:
        """Its run folder."""
        (folder,) = (self.directory / "runs").iterdir()
        return folder

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Its `summary.json`."""
        return json.loads((self.folder / "summary.json").read_text())

    @cached_property
    def checkpoints(self) -> list[Path]:
        """Its checkpoint files, oldest first."""
        return sorted((self.folder / "checkpoints").glob("checkpoint-*.pt"))

    def log(self, name: str) -> str:
        """Return the log of one of its processes."""
        return (self.folder / "logs" / f"{name}.log").read_text()

    def finished(self) -> Ended:
        """Return itself if it ended with 0; AssertionError shows what it said otherwise."""
        assert self.returncode == 0, self.stdout + self.stderr
        return self


class Running:
    """A command that has been started. As a context manager it leaves no process behind.

    Args:
        directory: working directory, made when missing; output goes into files in it.
        arguments: of `rltrain`.
        environ: variables added to this process's.
        prefix: a program that executes the command instead.
        streams: stdin, stdout and stderr as for Popen; None uses no stdin and the files.
    """

    def __init__(
        self, directory: Path, *arguments: str, environ: dict[str, str] | None = None, prefix: tuple[str, ...] = (),
        streams: tuple[int, int, int] | None = None,
    ):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment = {**inherited, "PYTHONPATH": str(ROOT), **(environ or {}), MARK: self.mark}
        self.out, self.err = directory / "stdout.txt", directory / "stderr.txt"
        with open(self.out, "w") as out, open(self.err, "w") as err:
            stdin, stdout, stderr = streams or (subprocess.DEVNULL, out, err)
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, *arguments], stdin=stdin, stdout=stdout, stderr=stderr, cwd=directory,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.process, *self.survivors()):
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(LIMIT_S)
        until(lambda: not self.survivors(), "killed processes are gone")

    def survivors(self) -> list[psutil.Process]:
        """Return every process that the command started and that has not ended, whoever is its parent now."""
        needle = f"{MARK}={self.mark}".encode()
        return [process for process in psutil.process_iter() if needle in _environment(process.pid).split(b"\0")]

    def named(self, name: str) -> list[psutil.Process]:
        """Return the processes that carry this whole name, such as `zygote:torch`."""
        return [p for p in self.survivors() if _read(p.pid, "comm").strip().decode() == name]

    def children(self) -> dict[str, psutil.Process]:
        """Return the worker processes by the name they carry, such as `actor-0`."""
        found = {}
        for process in self.survivors():
            name = _read(process.pid, "comm").strip().decode()
            if name.startswith("rl:"):
                found[name.removeprefix("rl:")] = process
        return found

    def folder(self) -> Path | None:
        """Return the run folder, None before it exists."""
        return next((self.directory / "runs").glob("*"), None) if (self.directory / "runs").exists() else None

    def wait_training(self) -> dict[str, psutil.Process]:
        """Wait until updates are made; returns the worker processes."""
        until(lambda: self.ended_or(self.has_curves), "the first point of a curve")
        assert self.process.poll() is None, self.out.read_text() + self.err.read_text()
        return self.children()

    def ended_or(self, condition: Callable[[], Any]) -> Any:
        """Return whether the condition holds or cannot come any more."""
        return self.process.poll() is not None or condition()

    def has_curves(self) -> bool:
        """Whether something was trained."""
        folder = self.folder()
        return folder is not None and any((folder / "tensorboard").glob("events*"))

    def has_checkpoint(self) -> bool:
        """Whether a checkpoint was written."""
        folder = self.folder()
        return folder is not None and any((folder / "checkpoints").glob("checkpoint-*.pt"))

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor."""
        self.process.send_signal(number)

    def end(self, limit_s: float = LIMIT_S) -> Ended:
        """Wait for its end."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            told = self.out.read_text() + self.err.read_text()
            raise AssertionError(f"still running after {limit_s} s:\n{told}") from None
        return Ended(self.process.returncode, self.out.read_text(), self.err.read_text(), self.directory)


def train(directory: Path, options: dict[str, Any], *arguments: str, **how: Any) -> Running:
    """Start `rltrain run` on a small configuration with these options, `section.key` -> value."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{path} = {json.dumps(value)}" for path, value in {"env.id": "CartPole-v1", **SMALL, **options}.items()]
    (directory / "config.toml").write_text("\n".join(lines) + "\n")
    return Running(directory, "run", "config.toml", *arguments, **how)


def resume(directory: Path, *arguments: str, **how: Any) -> Running:
    """Start `rltrain run --resume latest` where a run was made."""
    return Running(directory, "run", "--resume", "latest", *arguments, **how)


def train_all(
    directory: Path, runs: dict[str, dict[str, Any]], at_once: int = 3, leaves_nothing: bool = False
) -> dict[str, Ended]:
    """Run several configurations to their end, a few at the same time; AssertionError where one leaves a process."""
    waiting, started, ended = list(runs.items()), {}, {}
    try:
        while waiting or len(ended) < len(runs):
            while waiting and len(started) - len(ended) < at_once:
                name, options = waiting.pop(0)
                started[name] = train(directory / name, options)
            first = next(name for name in started if name not in ended)
            ended[first] = started[first].end()
            if leaves_nothing:
                until(lambda: not started[first].survivors(), f"no process of {first!r} is left", 10)  # noqa: B023
    finally:
        for run in started.values():
            run.__exit__()
    return ended


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the curves of a run folder as TensorBoard shows them: name -> (env steps, value), in order of writing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def memory_maps(pid: int) -> str:
    """Return the names of the files that a process has mapped, one a line."""
    return _read(pid, "maps").decode(errors="replace")


def num_threads(pid: int) -> int:
    """Return how many threads a process has."""
    (line,) = (line for line in _read(pid, "status").splitlines() if line.startswith(b"Threads:"))
    return int(line.split()[1])


def variable(pid: int, name: str) -> str | None:
    """Return an environment variable with which a process was started."""
    start = f"{name}=".encode()
    found = [entry.removeprefix(start) for entry in _environment(pid).split(b"\0") if entry.startswith(start)]
    return found[0].decode() if found else None


def _environment(pid: int) -> bytes:
    return _read(pid, "environ")


def _read(pid: int, part: str) -> bytes:
    """Read a file of /proc; empty for a process that has ended (a zombie included) or is not ours."""
    try:
        return Path(f"/proc/{pid}/{part}").read_bytes()
    except OSError:
        return b""
