"""Every cause of death of every process, with no restart allowed: exit code, message, and nothing left behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rltrain.envs.seeding import env_seed
from tests.moments import MOMENTS
from tests.runs import Ended, train_all

pytestmark = pytest.mark.timeout(600)

AT_WORK = {
    "actor": "actor: fragment half full",
    "server": "server: before the forward",
    "learner": "learner: in the update",
}
WORDS = {
    "raise": "ended with exit code 1",
    "exit": "ended with exit code 1",  # SystemExit is an exception like any other there
    "_exit": "ended with exit code 3",
    "kill": "was killed by SIGKILL",
    "segv": "was killed by SIGSEGV",
    "abort": "was killed by SIGABRT",
    "hang": "gave no sign of life and was killed",
    "stop": "gave no sign of life and was killed",
}
USUAL = (
    ("actor", "segv"), ("actor", "_exit"), ("server", "raise"), ("server", "kill"), ("learner", "raise"),
    ("learner", "kill"),
)  # fmt: skip
ALL = [(role, cause) for role in AT_WORK for cause in WORDS]
BUILT = [
    *(("actor", "kill"), ("server", "raise"), ("learner", "kill")),
    *(pytest.param(role, cause, marks=pytest.mark.stress)
      for role, cause in (("actor", "exit"), ("server", "segv"), ("learner", "hang"))),
]  # fmt: skip
"""The last three take twenty seconds."""


def options(folder: Path, moment: str, cause: str) -> dict:
    mine = {"moment": moment, "cause": cause, "once": str(folder / f"{moment}-{cause}".replace(" ", "-"))}
    return {
        "env.id": "tests.moments:make_env", "model.kind": "tests.moments:make_model", "env.normalize_obs": True,
        **{f"{section}.kwargs.{name}": value for section in ("env", "model") for name, value in mine.items()},
        "run.total_env_steps": 10**9, "supervision.max_restarts": 0, "supervision.heartbeat_timeout_s": 3.0,
        "supervision.boot_timeout_s": 10.0,
    }  # fmt: skip


def name_of(role: str, cause: str) -> str:
    return f"{role} {cause}"


def check(run: Ended, role: str, cause: str) -> None:
    """Check what is told of a death at work, and what is left."""
    process = MOMENTS[AT_WORK[role]].process
    assert run.returncode == 4, run.stdout + run.stderr
    assert re.search(rf"error: {process} \(pid \d+\) {WORDS[cause]}", run.stderr), run.stderr
    assert f"{process} died once, supervision.max_restarts = 0." in run.stderr
    assert f"Its log: {run.folder / 'logs' / process}.log" in run.stderr
    place = re.search(r"while stepping env index (\d) \(seed (\d+)\), step (\d+) of this env, action [01]", run.stderr)
    if role == "actor" and cause not in ("raise", "exit"):  # the 500th step of its four envs
        assert place.groups() == ("3", str(env_seed(0, 3)), "125")
    else:
        assert place is None
    assert ("when memory runs out" in run.stderr) is (cause == "kill")
    assert run.stderr.count("Traceback") == (cause in ("raise", "exit"))
    if cause == "stop":
        assert "it does not even say where it is, as one that was stopped" in run.stdout
    assert run.summary["state"] == "failed"
    assert run.summary["exit_code"] == 4
    assert bool(run.checkpoints) is (role != "learner"), "the learner saves what it has where it can"
    check_nothing_is_left(run)


def check_nothing_is_left(run: Ended) -> None:
    """Processes are looked for when the run is left, by `train_all`."""
    assert not [path for path in run.directory.rglob("*") if "tmp" in path.name]
    assert not [name for name in os.listdir("/dev/shm") if "rltrain" in name]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    runs = {name_of(role, cause): options(folder, AT_WORK[role], cause) for role, cause in USUAL}
    return train_all(folder, runs, at_once=4, leaves_nothing=True)


@pytest.mark.parametrize(("role", "cause"), USUAL)
def test_run_that_lost_a_process_says_which_and_how_and_leaves_nothing(usual, role, cause):
    check(usual[name_of(role, cause)], role, cause)


@pytest.mark.stress
@pytest.mark.parametrize(("role", "cause"), ALL)
def test_run_that_lost_any_process_in_any_way_says_so_and_leaves_nothing(tmp_path, role, cause):
    """Twenty-four runs take one and a half minutes."""
    runs = {"run": options(tmp_path, AT_WORK[role], cause)}
    check(train_all(tmp_path, runs, leaves_nothing=True)["run"], role, cause)


@pytest.mark.parametrize(("role", "cause"), BUILT)
def test_run_that_lost_a_process_while_starting_is_not_tried_again(tmp_path, role, cause):
    runs = {"run": options(tmp_path, f"{role}: built", cause)}
    run = train_all(tmp_path, runs, leaves_nothing=True)["run"]
    process = MOMENTS[f"{role}: built"].process
    assert run.returncode == 3, run.stdout + run.stderr
    if cause == "hang":
        assert f"{process} not ready after supervision.boot_timeout_s = 10 s" in run.stderr
        assert "moments.py" in run.stderr, "where it is"
    elif cause in ("raise", "exit"):
        assert f"{process} failed while starting" in run.stderr
        assert run.stderr.count("Traceback") == 1
    else:
        assert f"{process} {WORDS[cause]}, while starting" in run.stderr
    check_nothing_is_left(run)
    assert "Traceback" not in run.stdout
