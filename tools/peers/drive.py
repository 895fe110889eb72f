"""One run of a peer or of rltrain, in processes of its own; its figures, and the memory of its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rltrain.bench.trial import TrialError, run_trial
from tools.peers.libraries import Options
from tools.peers.venvs import last_line

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TARGET = 475.0
FRAGMENT_LENGTH = {"cartpole": 32, "pong": 128}
NUM_MINIBATCHES = 4
_BOOT_S = 90.0
"""Longest time beyond the measured one that a peer may take, its start and its slowest batch included."""
_SAMPLE_S = 0.1


class PeerError(Exception):
    """A run gave no figures; the message is one line."""


@dataclass(frozen=True)
class Job:
    """What is to be measured.

    Args:
        work: `cartpole` or `pong`.
        seconds: measured.
        to_target: train until the return of `TARGET` instead, `seconds` at most, with `seed`.
        seed: of everything.
    """

    work: str
    seconds: float
    to_target: bool = False
    seed: int = 1


@dataclass(frozen=True)
class Measured:
    """What a run said.

    Args:
        env_steps_per_s: learned from, after the warm-up; None where it was too short.
        first_update_s: from process start to the end of the first update.
        seconds_to_target: from process start; None where it was not reached.
        peak_bytes: resident memory of all its processes together; 0 where it was not watched.
    """

    env_steps_per_s: float | None
    first_update_s: float | None
    seconds_to_target: float | None
    peak_bytes: int = 0


def figures_of(output: str) -> dict[str, Any]:
    """Return the figures among what a driver printed: the last line that is a JSON object.

    Raises:
        PeerError: there are none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, Any] = json.loads(line)
                return found
    raise PeerError(last_line(output))


def drive(python: Path, driver: Path, job: Job, options: Options, is_watched: bool = False) -> Measured:
    """Train with a peer.

    Args:
        python: of its environment.
        driver: the script.
        job: what is measured.
        options: its setting.
        is_watched: whether to sample its memory, which takes a little of a core.

    Raises:
        PeerError: it failed, or took too long.
    """
    limit_s = job.seconds + _BOOT_S
    with tempfile.TemporaryDirectory(prefix="rltrain-peers-") as folder:
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        environment |= {"WANDB_MODE": "disabled", "PYTHONWARNINGS": "ignore", "RAY_DEDUP_LOGS": "0"}
        began = time.time()
        request = {
            "work": job.work, "to_target": job.to_target, "seconds": job.seconds, "limit_s": job.seconds,
            "began": began, "seed": job.seed, "target": TARGET,
            "fragment_length": FRAGMENT_LENGTH[job.work], "num_minibatches": NUM_MINIBATCHES, **options,
        }  # fmt: skip
        with (Path(folder) / "output").open("w+") as output, watched(is_watched) as peak:
            process = subprocess.Popen(
                [str(python), str(driver), json.dumps(request)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
            output.seek(0)
            said = output.read()
        if code is None:
            raise PeerError(f"not done after {limit_s:g} s: {last_line(said)}")
        if code:
            raise PeerError(f"exit code {code}: {last_line(said)}")
    found = figures_of(said)
    return Measured(found["env_steps_per_s"], found["first_update_s"], found["seconds_to_target"], max(peak))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a driver and all that it started and left; what is in another session included."""
    left = [p for p in _family() if p.pid != process.pid]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for child in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _family() -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process().children(recursive=True)


@contextlib.contextmanager
def watched(is_watched: bool) -> Iterator[list[int]]:
    """Sample the resident memory of all processes below this one, shared pages counted in each; gives the sums."""
    sums, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_S):
            total = 0
            for process in _family():
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
            sums.append(total)

    thread = threading.Thread(target=sample, daemon=True)
    if is_watched:
        thread.start()
    try:
        yield sums
    finally:
        stop.set()
        if is_watched:
            thread.join()


def drive_rltrain(job: Job, options: Options, is_watched: bool = False) -> Measured:
    """Train with rltrain; its rate is from the end of the first update on.

    Raises:
        PeerError: it failed.
    """
    config = CONFIGS / f"{job.work}.toml"
    overrides: Options = {"run.seed": job.seed}
    if not job.to_target:
        overrides |= {
            "algo.ppo.epochs": 1, "algo.ppo.num_minibatches": NUM_MINIBATCHES,
            "pipeline.fragment_length": FRAGMENT_LENGTH[job.work],
        }  # fmt: skip
    try:
        with watched(is_watched) as peak:
            trial = run_trial(config, overrides | options, job.seconds, is_endless=not job.to_target)
    except TrialError as error:
        raise PeerError(last_line(str(error))) from error
    summary = trial.summary
    reached = float(summary["duration_s"]) if summary["reason"] == "target" else None
    return Measured(trial.env_steps_per_s or None, summary["first_update_s"], reached, max(peak))
