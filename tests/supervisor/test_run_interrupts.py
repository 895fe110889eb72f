"""Ctrl-C at many moments of a run: the exit code, few words, nothing left. Case M04."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import Ended, Running, memory_maps, train, until

pytestmark = pytest.mark.timeout(600)

LONG = {"run.total_env_steps": 10**9, "log.every_env_steps": 256}
BIG = {"model.hidden_sizes": [1024, 1024], "checkpoint.every_env_steps": 1}
"""A checkpoint after each update, of 13 MB."""


def interrupt(run: Running) -> None:
    """Press Ctrl-C: the terminal sends it to the whole group."""
    os.killpg(run.process.pid, signal.SIGINT)


def is_importing(run: Running) -> bool:
    return "pydantic_core" in memory_maps(run.process.pid) and run.folder() is None


def has_actor(run: Running) -> bool:
    return "actor-0" in run.children()


def is_saving(run: Running) -> bool:
    return any(run.directory.glob("runs/*/checkpoints/.*.tmp"))


def has_flag(run: Running) -> bool:
    return (run.directory / "flag").exists()


MOMENTS: dict[str, tuple[dict, Callable[[Running], bool]]] = {
    "importing": ({}, is_importing),
    "starting actors": ({}, has_actor),
    "saving": (BIG, is_saving),
    "evaluating": ({"env.id": "tests.rude_envs:TellEvaluation", "eval.every_env_steps": 256}, has_flag),
}


def start(folder: Path, options: dict) -> Running:
    flag = {"env.kwargs.flag": str(folder / "flag")} if "env.id" in options else {}
    return train(folder, {**LONG, **options, **flag})


def check_nothing_is_left(run: Running) -> None:
    until(lambda: not run.survivors(), "no process is left", limit_s=15)
    assert not [path for path in run.directory.rglob("*") if "tmp" in path.name]
    assert not [name for name in os.listdir("/dev/shm") if "rltrain" in name]


def check(ended: Ended) -> None:
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert len(ended.stderr.splitlines()) <= 5, ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    started = {name: start(folder / name.replace(" ", "-"), options) for name, (options, _) in MOMENTS.items()}
    found = {}
    try:
        for name in MOMENTS:  # in the order in which the moments come
            run = started[name]
            until(lambda: run.ended_or(lambda: MOMENTS[name][1](run)), name)  # noqa: B023
            interrupt(run)
        for name, run in started.items():
            found[name] = run.end()
            check_nothing_is_left(run)
    finally:
        for run in started.values():
            run.__exit__()
    return found


@pytest.mark.parametrize("name", MOMENTS)
def test_run_interrupted_at_a_moment_ends_with_130_and_few_words(interrupted, name):
    ended = interrupted[name]
    check(ended)
    if name in ("saving", "evaluating"):
        assert ended.summary["state"] == "stopped"
        assert ended.checkpoints[-1].name == Path(ended.summary["checkpoint"]).name
        assert int(ended.checkpoints[-1].stem.split("-")[1]) == ended.summary["env_steps"]
    else:
        assert ended.stderr.strip() in ("error: interrupted", "error: Stopped while starting; nothing was trained.")
        assert not (ended.directory / "runs").exists()


def test_run_interrupted_after_its_last_step_has_finished(tmp_path):
    """Everything was learned and saved: the envs are left to close by themselves no more, and that is all."""
    options = {"env.id": "tests.rude_envs:SlowClose", "run.total_env_steps": 1024}
    with start(tmp_path, options) as run:
        until(lambda: run.ended_or(lambda: has_flag(run)), "an env is closed")
        interrupt(run)
        ended = run.end()
        check_nothing_is_left(run)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.summary["state"] == "finished"
    assert ended.stderr == ""


RANDOM_MOMENTS = range(20)
BUSY = {
    "model.hidden_sizes": [512, 512], "checkpoint.every_env_steps": 512, "eval.every_env_steps": 512,
    "eval.episodes": 2, "run.total_env_steps": 8192,
}  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize("seed", RANDOM_MOMENTS)
def test_run_interrupted_at_a_random_moment_ends_with_130_and_few_words(tmp_path, seed):
    """Twenty moments take one and a half minutes; a run that had finished by then ends with 0."""
    with start(tmp_path, BUSY) as run:
        until(lambda: len(run.survivors()) > 1, "rltrain imports, in this and in another process")
        moment = time.monotonic() + random.Random(seed).uniform(0, 5)
        until(lambda: run.process.poll() is not None or time.monotonic() > moment, "the moment")
        if run.process.poll() is None:
            interrupt(run)
        ended = run.end()
        check_nothing_is_left(run)
    if ended.returncode == 0:
        assert ended.summary["state"] == "finished"
    else:
        check(ended)
