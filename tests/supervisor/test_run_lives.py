"""Whole runs whose inference server or learner is killed: they go on, and end as if nothing had happened."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from rltrain.supervisor.run_list import newest_checkpoint
from tests.runs import Ended, Running, scalars, train, train_all, until

pytestmark = pytest.mark.timeout(300)

TOTAL = 12_288
LONG_ENOUGH = {
    "run.total_env_steps": TOTAL, "checkpoint.every_env_steps": 2048, "log.every_env_steps": 256, "run.seed": 3,
    "env.normalize_obs": True, "supervision.restart_backoff_s": 0.05,
}  # fmt: skip
LOCKSTEP = ("overlap", "sync")
VICTIMS = ("inference", "learner")


def points(run: Running) -> int:
    """Return how far the curves on disk lead."""
    return max((step for step, _ in scalars(run.folder()).get("loss/learning_rate", [])), default=0)


def num_curve_files(run: Running) -> int:
    """Return how many files with curves there are; each boot begins one."""
    return len(list((run.folder() / "tensorboard").glob("events*")))


def killed(folder, schedule: str, name: str) -> Ended:
    """Kill a process once a checkpoint is there, and let the run end by itself."""
    with train(folder, {**LONG_ENOUGH, "pipeline.schedule": schedule}) as run:
        until(lambda: run.ended_or(lambda: run.has_checkpoint() and points(run) > 2500), "a checkpoint")
        run.children()[name].send_signal(signal.SIGKILL)
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    return ended


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return train_all(folder, {s: {**LONG_ENOUGH, "pipeline.schedule": s} for s in LOCKSTEP})


KILLED = [
    *(("overlap", "inference"), ("sync", "learner")),
    *(pytest.param(schedule, name, marks=pytest.mark.stress)
      for schedule, name in (("sync", VICTIMS[0]), ("overlap", VICTIMS[1]), *(("async", name) for name in VICTIMS))),
]  # fmt: skip
"""The last four take twenty seconds; `test_run_moments.py` has the moments that matter."""


@pytest.mark.parametrize(("schedule", "name"), KILLED)
def test_run_goes_on_after_a_death_and_comes_to_the_same_weights(tmp_path, undisturbed, schedule, name):
    ended = killed(tmp_path, schedule, name).finished()
    assert ended.summary["restarts"] == 1
    assert ended.summary["env_steps"] >= TOTAL
    assert ended.stderr == ""
    assert f"warning: {name} was killed by SIGKILL" in ended.stdout
    if schedule in LOCKSTEP:
        for figure in ("weights_sha256", "env_steps", "updates", "episodes", "return_mean"):
            assert ended.summary[figure] == undisturbed[schedule].summary[figure], figure
    for tag, curve in scalars(ended.folder).items():
        steps = [step for step, _ in curve]
        assert steps == sorted(set(steps)), tag


def begun(folder, **options) -> Running:
    """Start a long run; returns it once it trains."""
    endless = {"run.total_env_steps": 10**9, "checkpoint.every_env_steps": 2048, "supervision.restart_backoff_s": 0.05}
    return train(folder, {**endless, **{name.replace("__", "."): value for name, value in options.items()}})


def test_stop_while_the_learner_is_dead_ends_the_run_and_says_what_is_lost(tmp_path):
    with begun(tmp_path, supervision__restart_backoff_s=60.0) as run:
        run.wait_training()["learner"].send_signal(signal.SIGKILL)
        until(lambda: num_curve_files(run) == 2, "the first death is over: the second one waits")
        run.children()["learner"].send_signal(signal.SIGKILL)
        log = run.folder() / "logs" / "supervisor.log"
        until(lambda: log.read_text().count("learner was killed by SIGKILL") == 2, "the death is noticed")
        run.signal(signal.SIGINT)
        ended = run.end(20)
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 130
    assert ended.summary["state"] == "stopped"
    assert "stopped without a checkpoint, as the learner had died" in ended.stderr
    assert "finishing the update" not in ended.stdout


def test_learner_and_server_killed_together_come_back(tmp_path):
    with begun(tmp_path, run__total_env_steps=20_000, supervision__restart_backoff_s=0.0) as run:
        workers = run.wait_training()
        run.signal(signal.SIGSTOP)
        for name in VICTIMS:
            workers[name].send_signal(signal.SIGKILL)
        until(lambda: {workers[name].status() for name in VICTIMS} == {psutil.STATUS_ZOMBIE}, "both are dead")
        run.signal(signal.SIGCONT)
        ended = run.end().finished()
    assert ended.summary["restarts"] == 1, "the server came back with everything else"
    assert ended.summary["env_steps"] >= 20_000


def test_learner_that_dies_with_a_process_over_its_budget_does_not_come_back(tmp_path):
    with begun(tmp_path, supervision__max_restarts=1) as run:
        before = run.wait_training()
        before["inference"].kill()
        until(lambda: run.children().get("inference", before["inference"]) != before["inference"], "another server")
        workers = run.children()
        until(lambda: run.ended_or(run.has_checkpoint), "it serves")
        run.signal(signal.SIGSTOP)
        for name in VICTIMS:
            workers[name].kill()
        until(lambda: {workers[name].status() for name in VICTIMS} == {psutil.STATUS_ZOMBIE}, "both are dead")
        run.signal(signal.SIGCONT)
        ended = run.end(30)
    assert ended.returncode == 4, ended.stderr
    assert "inference died 2 times, supervision.max_restarts = 1." in ended.stderr


def test_zygote_killed_while_the_run_starts_again_is_replaced(tmp_path):
    with begun(tmp_path, run__total_env_steps=20_000) as run:
        run.wait_training()["learner"].kill()
        until(lambda: run.ended_or(lambda: "starting again" in run.out.read_text()), "the second boot")
        for process in run.named("zygote:torch"):
            process.kill()
        ended = run.end().finished()
    assert ended.summary["env_steps"] >= 20_000


@pytest.mark.parametrize("name", VICTIMS)
def test_process_killed_while_the_run_starts_again_is_tried_once_more(tmp_path, name):
    with begun(tmp_path, run__total_env_steps=20_000) as run:
        before = run.wait_training()
        before["learner"].send_signal(signal.SIGKILL)
        until(lambda: run.children().get(name, before[name]).pid != before[name].pid, "another one")
        run.children()[name].send_signal(signal.SIGKILL)
        ended = run.end().finished()
    assert ended.summary["env_steps"] >= 20_000


FAILING = """
import sys
from rltrain.cli import main
from rltrain.supervisor.evaluations import Evaluations

def ask(self, env_steps):
    if env_steps > 1000:
        raise ZeroDivisionError("by nobody foreseen")

Evaluations.ask = ask
main(sys.argv[4:])
"""


def test_supervisor_that_fails_itself_has_the_learner_save_and_tells_its_traceback(tmp_path):
    options = {"run.total_env_steps": 10**9}
    with train(tmp_path, options, prefix=(sys.executable, "-c", FAILING)) as run:
        ended = run.end(40)
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 1
    assert "error: rltrain itself failed while it watched the run" in ended.stderr
    assert "ZeroDivisionError: by nobody foreseen" in ended.stderr
    assert "by nobody foreseen" in ended.log("supervisor")
    assert (ended.summary["state"], ended.summary["exit_code"]) == ("failed", 1)
    assert ended.summary["env_steps"] > 1000
    assert ended.checkpoints, "the learner saved what it had"


def test_env_that_cannot_be_built_again_ends_the_run_with_its_words_once_the_budget_is_spent(tmp_path):
    flag = tmp_path / "flag"
    refuse = {"env__id": "tests.rude_envs:Refuse", "env__kwargs__flag": str(flag)}
    with begun(tmp_path, **refuse, supervision__max_restarts=2) as run:
        workers = run.wait_training()
        flag.touch()
        workers["learner"].send_signal(signal.SIGKILL)
        ended = run.end(40)
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 4
    assert "the licence is used up" in ended.stderr
    assert "supervision.max_restarts = 2" in ended.stderr
    assert ended.summary["state"] == "failed"


def test_run_whose_envs_cannot_be_built_for_a_while_after_its_learners_death_goes_on(tmp_path):
    flag = tmp_path / "flag"
    refuse = {"env__id": "tests.rude_envs:Refuse", "env__kwargs__flag": str(flag)}
    with begun(tmp_path, **refuse, run__total_env_steps=20_000, supervision__max_restarts=1000) as run:
        learner = run.wait_training()["learner"]
        flag.touch()
        learner.send_signal(signal.SIGKILL)
        until(lambda: run.ended_or(lambda: "licence is used up" in run.out.read_text()), "it was tried")
        flag.unlink()
        ended = run.end().finished()
    assert ended.summary["restarts"] >= 2
    assert ended.summary["env_steps"] >= 20_000


def test_actor_whose_env_cannot_be_built_for_a_while_is_tried_again(tmp_path):
    flag = tmp_path / "flag"
    refuse = {"env__id": "tests.rude_envs:Refuse", "env__kwargs__flag": str(flag)}
    with begun(tmp_path, **refuse, supervision__max_restarts=1000) as run:
        first = run.wait_training()["actor-0"]
        flag.touch()
        first.send_signal(signal.SIGKILL)
        log = run.folder() / "logs" / "actor-0.log"
        until(lambda: run.ended_or(lambda: "the licence is used up" in log.read_text()), "it was tried")
        flag.unlink()
        until(lambda: run.ended_or(lambda: "actor-0" in run.children()), "it was tried again")
        before = newest_checkpoint(run.folder())
        until(lambda: run.ended_or(lambda: newest_checkpoint(run.folder()) != before), "training goes on")
        run.signal(signal.SIGINT)
        ended = run.end()
    assert ended.returncode == 130, ended.stderr
    assert ended.summary["restarts"] >= 2


def test_actor_that_dies_while_another_process_still_starts_died_in_training(tmp_path):
    options = {"eval.every_env_steps": 1024, "supervision.max_restarts": 0}
    with train(tmp_path, {"env.id": "tests.rude_envs:BoomEarly", **options}) as run:
        ended = run.end(40)
    assert ended.returncode == 4, ended.stderr
    assert "ValueError: boom" in ended.stderr
    assert "while starting" not in ended.stderr
