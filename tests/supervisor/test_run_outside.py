"""Runs whose folder, limits or zygotes are taken away from outside: training goes on or ends in one sentence."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from tests.runs import Running, resume, scalars, train, until

SCHEDULES = {
    "overlap": {}, "sync": {"pipeline.schedule": "sync"}, "async": {"pipeline.schedule": "async", "algo.name": "appo"},
}
pytestmark = pytest.mark.timeout(300)

LOG_EVERY, BATCH = 256, 128
"""Env steps between two points of the curves, and of one batch."""
LONG = {"run.total_env_steps": 10**9, "checkpoint.every_env_steps": 1024, "supervision.shutdown_grace_s": 4.0}


def zygote(run: Running, kind: str) -> psutil.Process:
    return run.named(f"zygote:{kind}")[0]


def test_run_whose_folder_is_moved_trains_on_and_saves_once_it_is_back(tmp_path):
    with train(tmp_path, LONG) as run:
        run.wait_training()
        folder = run.folder()
        away = folder.rename(tmp_path / "away")
        log = away / "logs" / "supervisor.log"  # which went along
        until(lambda: run.ended_or(lambda: "writing a checkpoint failed" in log.read_text()), "a save that fails")
        assert not folder.exists(), "nothing is made anew in its place"
        away.rename(folder)
        newest = max(folder.glob("checkpoints/checkpoint-*.pt"), default=folder)
        until(lambda: max(folder.glob("checkpoints/checkpoint-*.pt"), default=folder) != newest, "another checkpoint")
        run.signal(signal.SIGTERM)
        ended = run.end()
    assert ended.returncode == 143, ended.stderr
    assert ended.summary["env_steps"] == int(ended.checkpoints[-1].stem.split("-")[1])


def test_run_whose_folder_is_gone_at_its_end_says_so_and_offers_nothing(tmp_path):
    with train(tmp_path, LONG) as run:
        run.wait_training()
        folder = run.folder()
        folder.rename(tmp_path / "away")
        run.signal(signal.SIGTERM)
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 5
    assert "error: learner: writing a checkpoint failed" in ended.stderr
    assert "summary.json: No such file or directory" in ended.stderr
    assert "has been moved or removed" in " ".join(ended.stdout.split())
    assert "rltrain run --resume" not in ended.stdout
    assert not folder.exists()
    assert "Traceback" not in ended.stderr


def test_run_whose_folder_is_gone_does_not_begin_anew_after_its_learners_death(tmp_path):
    with train(tmp_path, {**LONG, "checkpoint.every_env_steps": 10**9}) as run:
        workers = run.wait_training()
        shutil.rmtree(run.folder(), ignore_errors=True)
        workers["learner"].kill()
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 5
    assert "error: opening the checkpoint folder failed" in ended.stderr
    assert not list(Path(tmp_path, "runs").iterdir())


def test_stop_of_a_run_that_starts_again_without_a_checkpoint_promises_none(tmp_path):
    """A zygote that stands still forks no second learner; nobody waits for what will never come."""
    with train(tmp_path, {**LONG, "checkpoint.every_env_steps": 10**9}) as run:
        workers = run.wait_training()
        zygote(run, "torch").suspend()
        workers["learner"].kill()
        until(lambda: "starting again" in run.out.read_text(), "the second boot")
        os.killpg(run.process.pid, signal.SIGINT)
        ended = run.end(10)
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 130
    assert "error: Stopped while starting; no checkpoint had been written." in ended.stderr
    assert "none was written" in ended.stdout


@pytest.mark.stress
def test_actor_that_a_zygote_does_not_fork_is_tried_again_after_the_boot_limit(tmp_path):
    """Takes 15 s."""
    with train(tmp_path, {**LONG, "supervision.boot_timeout_s": 8.0}) as run:
        workers = run.wait_training()
        zygote(run, "plain").suspend()
        workers["actor-0"].kill()
        until(lambda: run.children().get("actor-0", workers["actor-0"]) != workers["actor-0"], "another actor")
        at = run.folder().stat().st_mtime
        until(lambda: (run.folder() / "checkpoints").stat().st_mtime > at, "training goes on")
        run.signal(signal.SIGTERM)
        assert run.end().returncode == 143


LIMITS = {
    "--nofile=24:24": (3, "error: Too many open files: a process of rltrain may not open more files"),
    "--fsize=8000:8000": (2, "this shell limits files to less: raise `ulimit -f`"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_run_under_a_limit_that_is_too_low_says_which_in_one_line(tmp_path, limit):
    code, words = LIMITS[limit]
    with train(tmp_path, {}, prefix=("prlimit", limit)) as run:
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.stress
def test_run_with_64_descriptors_trains_and_is_resumed(tmp_path):
    """Takes 5 s."""
    with train(tmp_path, {}, prefix=("prlimit", "--nofile=64:64")) as run:
        run.end().finished()
    with resume(tmp_path, "--set", "run.total_env_steps=2048", prefix=("prlimit", "--nofile=64:64")) as run:
        run.end().finished()


def test_copy_of_an_actor_that_an_env_forks_has_no_part_in_the_run(tmp_path):
    with train(tmp_path, {"env.id": "tests.forking_envs:ForkAndReturn", "run.total_env_steps": 4096}) as run:
        ended = run.end().finished()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert "The environment forked its process" in ended.log("actor-0")
    assert ended.summary["restarts"] == 0
    assert ended.summary["return_mean"] == 20.0
    assert "Fatal" not in ended.log("actor-0")


def test_copy_of_a_process_that_exits_closes_none_of_its_envs(tmp_path):
    told = tmp_path / "told"
    options = {"env.id": "tests.forking_envs:ForkAndExit", "env.kwargs.told": str(told), "eval.every_env_steps": 2048}
    with train(tmp_path, {**options, "run.total_env_steps": 4096}) as run:
        ended = run.end().finished()
    with Running(tmp_path, "eval", str(ended.folder), "--episodes", "10") as evaluation:
        evaluated = evaluation.end().finished()
    lines = [line.split() for line in told.read_text().splitlines()]
    built, closed = ({pid for what, pid in lines if what == wanted} for wanted in ("built", "closed"))
    assert closed == built
    assert len(built) == 4, "two actors, the evaluator, the command"
    for said in (ended.log("actor-0"), ended.log("evaluator"), evaluated.stderr):
        assert "The environment forked its process" in said


def furthest(run: Running) -> int:
    """Return the env steps of the furthest checkpoint, 0 where there is none."""
    folder = run.folder()
    found = folder.glob("checkpoints/checkpoint-*.pt") if folder else ()
    return max((int(path.stem.removeprefix("checkpoint-")) for path in found), default=0)


def curves_of(run: Running) -> set[Path]:
    """Return the files with curves; each boot begins one."""
    return set((run.folder() / "tensorboard").glob("events*"))


def first_point(run: Running, before: set[Path], aside: Path) -> int:
    """Return the env steps of the first point in the files that were not there before, 0 where there is none yet."""
    (aside / "tensorboard").mkdir(parents=True, exist_ok=True)
    for path in curves_of(run) - before:
        shutil.copy(path, aside / "tensorboard")
    return min((step for step, _ in scalars(aside).get("loss/learning_rate", [])), default=0)


def test_run_saves_by_time_in_every_schedule_and_goes_on_from_there_after_a_kill(tmp_path):
    options = {"run.total_env_steps": 10**9, "checkpoint.every_s": 0.2, "log.every_env_steps": LOG_EVERY}
    runs = {s: train(tmp_path / s, {**options, **own}) for s, own in SCHEDULES.items()}
    saved = {}
    try:
        for schedule, run in runs.items():
            until(lambda: run.ended_or(lambda: furthest(run) > 10 * LOG_EVERY), schedule)  # noqa: B023
            run.signal(signal.SIGKILL)
            until(lambda: not run.survivors(), "no process is left", limit_s=10)  # noqa: B023
            saved[schedule] = furthest(run), curves_of(run)
    finally:
        for run in runs.values():
            run.__exit__()
    for schedule, (env_steps, before) in saved.items():
        assert env_steps > 10 * LOG_EVERY, schedule
        with resume(tmp_path / schedule) as run:
            aside = tmp_path / f"{schedule}-resumed"
            until(lambda: run.ended_or(lambda: first_point(run, before, aside)), schedule)  # noqa: B023
            run.signal(signal.SIGINT)
            ended = run.end()
        assert ended.returncode == 130, ended.stderr
        begun_at = first_point(run, before, aside)
        assert env_steps < begun_at <= env_steps + LOG_EVERY + BATCH, schedule
        assert ended.summary["env_steps"] >= begun_at
