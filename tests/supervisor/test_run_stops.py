"""Runs that are asked to stop at any moment, or come to their end while others are behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.runs import Ended, Running, resume, train, until

pytestmark = pytest.mark.timeout(600)

LONG = {"run.total_env_steps": 10**9, "log.every_env_steps": 256}
BUSY = {**LONG, "checkpoint.every_env_steps": 128, "eval.every_env_steps": 256, "eval.episodes": 1}


def is_saving(run: Running) -> bool:
    folder = run.folder()
    return folder is not None and any((folder / "checkpoints").glob(".checkpoint-*"))


MOMENTS: dict[str, Callable[[Running], object]] = {
    "actors start": lambda run: "actor-1" in run.children(),
    "the folder is made": lambda run: run.folder(),
    "a checkpoint is written": is_saving,
    "an evaluation was played": lambda run: "evaluated" in run.out.read_text(),
}


def check_stopped(run: Running, ended: Ended, number: int) -> None:
    """Check what a run that a signal stopped says and leaves."""
    assert ended.returncode in (128 + number, -number), ended.stdout + ended.stderr
    assert len(ended.stderr.splitlines()) <= 5
    assert "Traceback" not in ended.stdout + ended.stderr
    until(lambda: not run.survivors(), "no process is left", limit_s=15)
    assert not list(ended.directory.rglob("*.tmp"))
    assert not [name for name in os.listdir("/dev/shm") if "rltrain" in name]


@pytest.mark.parametrize(
    "moment",
    [*("the folder is made", "a checkpoint is written"),
     *(pytest.param(moment, marks=pytest.mark.stress) for moment in ("actors start", "an evaluation was played"))],
)  # fmt: skip
def test_run_interrupted_at_a_chosen_moment_ends_in_order(tmp_path, moment):
    """Case M04: Ctrl-C, which the terminal sends to the whole group."""
    with train(tmp_path, BUSY) as run:
        until(lambda: run.ended_or(lambda: MOMENTS[moment](run)), moment)
        os.killpg(run.process.pid, signal.SIGINT)
        ended = run.end(15)
        check_stopped(run, ended, signal.SIGINT)
    assert ended.returncode == 130
    if run.folder() is not None and "actor" not in moment:
        assert ended.checkpoints or "nothing was trained" in ended.stderr


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_run_interrupted_at_a_random_moment_ends_in_order(tmp_path, seed):
    """Case M04. Takes one and a half minutes; the first moments are before Python itself is ready for a signal."""
    with train(tmp_path, {**BUSY, "run.total_env_steps": 8192}) as run:
        at = time.monotonic() + random.Random(seed).uniform(0.1, 5.0)
        until(lambda: run.process.poll() is not None or time.monotonic() >= at, "the moment")
        if run.process.poll() is None:
            os.killpg(run.process.pid, signal.SIGINT)
        ended = run.end(15)
        if ended.returncode != 0:
            check_stopped(run, ended, signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "is_group", "every"),
    [(signal.SIGTERM, True, 10**9), (signal.SIGHUP, False, 128),
     pytest.param(signal.SIGTERM, False, 128, marks=pytest.mark.stress)],
)  # fmt: skip
def test_run_ended_from_outside_saves_where_it_is_and_goes_on_from_there(tmp_path, number, is_group, every):
    """Case M05: a scheduler that ends parent or group, a terminal that is closed, and in the middle of a checkpoint."""
    with train(tmp_path, {**LONG, "checkpoint.every_env_steps": every}) as run:
        run.wait_training()
        until(lambda: run.ended_or(lambda: every > 128 or is_saving(run)), "a checkpoint is being written")
        (os.killpg if is_group else os.kill)(run.process.pid, number)
        ended = run.end(15)
        check_stopped(run, ended, number)
    assert ended.returncode == 128 + number
    assert ended.summary["env_steps"] == int(ended.checkpoints[-1].stem.split("-")[1]) > 0
    with resume(tmp_path, "--set", f"run.total_env_steps={ended.summary['env_steps'] + 512}") as again:
        assert again.end().finished().summary["env_steps"] >= ended.summary["env_steps"] + 512


@pytest.mark.parametrize("repeats", [1, pytest.param(20, marks=pytest.mark.stress)])
def test_run_with_full_rings_and_a_slow_learner_ends_after_its_last_step(tmp_path, repeats):
    """Case M06: whatever is still queued. Twenty runs take two minutes."""
    slow = {
        "model.kind": "tests.toy_models:make_slow", "model.kwargs.pause_s": 0.2, "algo.name": "appo",
        "pipeline.schedule": "async", "actors.num_actors": 4, "run.total_env_steps": 2048,
        "checkpoint.every_env_steps": 10**9,
    }  # fmt: skip
    for number in range(repeats):
        with train(tmp_path / str(number), slow) as run:
            until(lambda: run.ended_or(run.has_checkpoint), "the last step is learned")
            ended = run.end(10).finished()
            until(lambda: not run.survivors(), "no process is left", limit_s=10)
        assert ended.summary["ledger"]["learner"]["update"] > 0.5, "it was slow"


@pytest.mark.parametrize("stuck", ["env", pytest.param("inference", marks=pytest.mark.stress)])
def test_run_with_a_stuck_process_stops_within_seconds_and_saves(tmp_path, stuck):
    """Case E16: Ctrl-C works while one waits for what never comes."""
    hangs = tmp_path / "hangs"
    env = {"env.id": "tests.moments:make_env", "env.kwargs.moment": "actor: fragment half full",
           "env.kwargs.cause": "hang", "env.kwargs.once": str(hangs)}  # fmt: skip
    options = {**LONG, **(env if stuck == "env" else {}), "supervision.shutdown_grace_s": 12.0}
    with train(tmp_path, options) as run:
        workers = run.wait_training()
        if stuck == "env":
            until(hangs.exists, "the env hangs")
        else:
            workers[stuck].suspend()
        began = time.monotonic()
        os.killpg(run.process.pid, signal.SIGINT)
        ended = run.end(30)
        check_stopped(run, ended, signal.SIGINT)
    assert ended.returncode == 130
    assert ended.checkpoints
    assert time.monotonic() - began < 15, "the learner waits six seconds for data, nobody twelve for the stuck one"


def test_run_with_a_stopped_learner_stops_once_its_silence_is_noticed(tmp_path):
    with train(tmp_path, {**LONG, "supervision.heartbeat_timeout_s": 3.0}) as run:
        run.wait_training()["learner"].suspend()
        os.killpg(run.process.pid, signal.SIGINT)
        ended = run.end(30)
        check_stopped(run, ended, signal.SIGINT)
    assert ended.returncode == 130
    assert "stopped without a checkpoint, as the learner had died" in ended.stderr
    assert "gave no sign of life" in ended.stderr
