"""Every cause of death of every process, with no restart allowed: exit code, message, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rltrain.envs.seeding import env_seed
from tests.moments import MOMENTS
from tests.runs import Ended, train, train_all, until

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
BUILT = (("actor", "kill"), ("server", "raise"), ("learner", "kill"))
ALL_BUILT = [(role, cause) for role in AT_WORK for cause in WORDS if cause != "stop"]
"""`stop` would wait for the same limit as `hang`, and cannot say where it is."""
BOOT_TIMEOUT_S = 15.0
IN_SHARED_MEMORY = set(os.listdir("/dev/shm"))


def options(folder: Path, moment: str, cause: str) -> dict[str, Any]:
    mine = {"moment": moment, "cause": cause, "once": str(folder / f"{moment}-{cause}".replace(" ", "-"))}
    limit = {"supervision.boot_timeout_s": BOOT_TIMEOUT_S} if moment.endswith("built") and cause == "hang" else {}
    return {
        "env.id": "tests.rude_envs:AtMoment", "model.kind": "tests.rude_models:make_model", "env.normalize_obs": True,
        **{f"{section}.kwargs.{name}": value for section in ("env", "model") for name, value in mine.items()},
        "run.total_env_steps": 10**9, "actors.groups_per_actor": 1, "supervision.max_restarts": 0,
        "supervision.heartbeat_timeout_s": 3.0, **limit,
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
    if role == "actor" and cause not in ("raise", "exit"):  # the 500th step of its two envs
        assert place.groups() == ("1", str(env_seed(0, 1)), "250")
    else:
        assert place is None
    assert ("memory ran out" in run.stderr) is (cause == "kill")
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
    assert set(os.listdir("/dev/shm")) <= IN_SHARED_MEMORY


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
    """Twenty-four runs take a minute and a half."""
    runs = {"run": options(tmp_path, AT_WORK[role], cause)}
    check(train_all(tmp_path, runs, leaves_nothing=True)["run"], role, cause)


@pytest.mark.parametrize(("role", "cause"), [
    *BUILT, *(pytest.param(*case, marks=pytest.mark.stress) for case in ALL_BUILT if case not in BUILT)
])  # fmt: skip
def test_run_that_lost_a_process_while_starting_is_not_tried_again(tmp_path, role, cause):
    """The eighteen that are stress take one and a half minutes."""
    runs = {"run": options(tmp_path, f"{role}: built", cause)}
    run = train_all(tmp_path, runs, leaves_nothing=True)["run"]
    process = MOMENTS[f"{role}: built"].process
    assert run.returncode == 3, run.stdout + run.stderr
    if cause == "hang":
        assert f"{process} not ready after supervision.boot_timeout_s = {BOOT_TIMEOUT_S:g} s" in run.stderr
        assert "moments.py" in run.stderr, "where it is"
    elif cause in ("raise", "exit"):
        assert f"{process} failed while starting" in run.stderr
        assert run.stderr.count("Traceback") == 1
    else:
        assert f"{process} {WORDS[cause]}, while starting" in run.stderr
    assert "Traceback" not in run.stdout
    if role == "server":  # which starts once the folder is there
        assert (run.summary["state"], run.summary["exit_code"], run.checkpoints) == ("failed", 3, [])
        assert run.summary["error"] in run.stderr
    else:
        assert not (run.directory / "runs").exists(), "nothing was trained"
    check_nothing_is_left(run)


@pytest.mark.stress
@pytest.mark.parametrize("cause", WORDS)
def test_run_that_lost_its_evaluator_in_any_way_goes_on_without(tmp_path, cause):
    """Eight runs take half a minute."""
    evaluated = {**options(tmp_path, "evaluator: in an episode", cause), "eval.every_env_steps": 1024}
    with train(tmp_path, evaluated) as run:
        run.wait_training()
        log = run.folder() / "logs" / "supervisor.log"
        until(lambda: run.ended_or(lambda: "no more evaluations" in log.read_text()), "its death is noticed")
        run.signal(signal.SIGTERM)
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 143, ended.stdout + ended.stderr
    told = "ValueError: boom" if cause == "raise" else "SystemExit: 3" if cause == "exit" else WORDS[cause]
    assert f"warning: evaluator {told}; no more evaluations. See {ended.folder / 'logs'}/evaluator.log" in ended.stdout
    assert ended.summary["evaluation"] is None
    assert ended.checkpoints
    check_nothing_is_left(ended)
