"""Which orphans are ended: those that carry the mark, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from rltrain.supervisor.launcher import Launcher
from rltrain.supervisor.logs import OutputPump
from rltrain.supervisor.orphans import Orphans
from rltrain.workers.child import PID_VARIABLE
from tests.runs import train, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def start() -> Iterator:
    """Return a function: start a program that sleeps, with this environment."""
    started = []

    def start(environment: dict[str, str]) -> psutil.Process:
        started.append(subprocess.Popen(["sleep", "300"], env=environment))
        process = psutil.Process(started[-1].pid)
        until(process.environ, "its program runs: in the middle of exec a process shows no environment", 10)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_orphans_are_those_that_carry_the_mark_and_the_pid_of_who_started_them(start):
    orphans, another = Orphans(), Orphans()
    marked, foreign = start(orphans.environment), start(dict(os.environ))
    of_one, of_other = (start({**orphans.environment, PID_VARIABLE: pid}) for pid in ("70001", "70002"))
    start(another.environment)

    assert orphans.alive(70001) == [of_one]
    assert set(orphans.alive()) == {marked, of_one, of_other}
    orphans.kill(orphans.alive())
    until(lambda: not orphans.alive(), "they are gone", 10)
    assert foreign.status() != psutil.STATUS_ZOMBIE


def test_end_of_a_run_leaves_alone_what_this_process_was_given_by_others(start):
    """As process 1 of a container it is the parent of what others leave behind, whenever they do."""
    launcher = Launcher(OutputPump())
    foreign = start(dict(os.environ))
    ours = start(launcher.orphans.environment)
    launcher.kill_orphans()
    assert foreign.status() != psutil.STATUS_ZOMBIE
    assert not ours.is_running() or ours.status() == psutil.STATUS_ZOMBIE
    launcher.pump.close()


@pytest.mark.parametrize("call", ["environ", "kill"])
def test_orphan_of_another_user_is_told_of_once_and_left(start, monkeypatch, call):
    launcher, told = Launcher(OutputPump()), []
    launcher.orphans.warn = told.append
    one, other = start(launcher.orphans.environment), start(launcher.orphans.environment)
    real = getattr(psutil.Process, call)

    def denied(process):
        if process == one:
            raise psutil.AccessDenied(process.pid)
        return real(process)

    monkeypatch.setattr(psutil.Process, call, denied)
    for _ in range(2):
        launcher.kill_orphans()
    (warning,) = told
    assert warning.startswith(f"process {one.pid} (sleep) belongs to another user")
    assert one.status() != psutil.STATUS_ZOMBIE
    assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE
    launcher.pump.close()


DENIED = """
import sys, psutil
from rltrain.cli import main
real = psutil.Process.kill

def kill(process):
    if process.name() == "sleep":
        raise psutil.AccessDenied(process.pid)
    real(process)

psutil.Process.kill = kill
main(sys.argv[4:])
"""


def test_run_whose_env_leaves_what_cannot_be_ended_comes_to_its_summary(tmp_path):
    with train(tmp_path, {"env.id": "tests.forking_envs:WithDaemon"}, prefix=(sys.executable, "-c", DENIED)) as run:
        ended = run.end().finished()
        left = run.survivors()
    assert {process.name() for process in left} <= {"sleep"}
    assert ended.summary["state"] == "finished"
    assert "(sleep) belongs to another user" in ended.stdout


def test_what_an_actors_env_started_in_a_session_of_its_own_ends_at_the_actors_death(tmp_path):
    with train(tmp_path, {"env.id": "tests.forking_envs:WithDaemon", "run.total_env_steps": 10**9}) as run:
        workers = run.wait_training()

        def daemons(pid: int) -> list[psutil.Process]:
            return [p for p in run.survivors() if p.name() == "sleep" and p.environ().get(PID_VARIABLE) == str(pid)]

        before, others = daemons(workers["actor-0"].pid), daemons(workers["actor-1"].pid)
        assert before
        workers["actor-0"].kill()
        until(lambda: not any(p.is_running() and p.status() != "zombie" for p in before), "they are gone", 10)
        assert run.process.poll() is None
        assert all(p.is_running() for p in others), "those of the other actor stay"
