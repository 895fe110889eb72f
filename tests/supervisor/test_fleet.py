"""The fleet with real processes: what it hears of their ends, and of those who should have forked them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from rltrain.config.load import config_from_dict
from rltrain.errors import BootError
from rltrain.supervisor import launcher as launching
from rltrain.supervisor import zygotes
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.launcher import Launcher
from rltrain.supervisor.logs import OutputPump
from rltrain.supervisor.roles import plan_roles
from tests.runs import ROOT, until

pytestmark = pytest.mark.timeout(60)

RESOLVED = {"actors": {"num_actors": 1}, "pipeline": {"num_slots": 8}, "run": {"code_dir": str(ROOT)}}


@pytest.fixture
def fleet(request):
    env_id = getattr(request, "param", "tests.forking_envs:WithChild")
    config = config_from_dict({"env": {"id": env_id}, **RESOLVED})
    made = Fleet(plan_roles(config, None), Launcher(OutputPump()), max_log_mib=1)
    yield made
    made.close()


def ended(fleet: Fleet) -> list:
    found = []
    until(lambda: found.extend(fleet.poll(0.1).ended) or found, "the end is reported", 20)
    return found


def test_child_whose_zygote_cannot_load_is_reported_and_the_zygotes_words_are_told(fleet, monkeypatch):
    code = "print('no such module'); raise SystemExit(3)"
    monkeypatch.setattr(zygotes, "python_command", lambda *_: [sys.executable, "-c", code])
    fleet.launcher.start_zygotes()

    child = fleet.start("actor-0")

    assert ended(fleet) == [child]
    assert fleet.alive() == []
    with pytest.raises(BootError, match=r"ended with exit code 3\.\nno such module"):
        until(lambda: (fleet.poll(0.1), fleet.launcher.check_zygotes()), "the zygote's end is told", 20)


def test_child_is_forked_by_another_zygote_once_the_first_is_dead(fleet):
    fleet.launcher.start_zygotes()
    first = fleet.launcher.zygotes["plain"].pid
    os.kill(first, signal.SIGKILL)
    until(lambda: (fleet.poll(0.1), first in fleet.launcher.statuses)[1], "it is gone", 20)

    child = fleet.start("actor-0")

    until(lambda: (fleet.poll(0.1), child.log.tail(1))[1], "the child's env was built", 20)
    assert fleet.launcher.zygotes["plain"].pid != first


def test_child_that_its_zygote_does_not_fork_is_given_up_and_the_zygote_with_it(fleet):
    fleet.launcher.start_zygotes()
    stopped = psutil.Process(fleet.launcher.zygotes["plain"].pid)
    stopped.suspend()
    child = fleet.start("actor-0")
    fleet.poll(0.2)
    assert child.pid is None

    fleet.kill(child)

    assert ended(fleet) == [child]
    until(lambda: (fleet.poll(0.1), not stopped.is_running())[1], "the zygote is gone", 20)
    another = fleet.start("actor-0")
    until(lambda: (fleet.poll(0.1), another.log.tail(1))[1], "the next one's env was built", 20)


def test_child_killed_by_a_signal_without_a_name_is_told_by_its_number(fleet):
    fleet.launcher.start_zygotes()
    child = fleet.start("actor-0")
    until(lambda: (fleet.poll(0.1), child.log.tail(1))[1], "it has started", 20)

    launching.end(child, 40)

    assert ended(fleet) == [child]
    assert child.describe_end() == "was killed by signal 40"


def test_child_killed_by_a_signal_takes_along_what_it_started(fleet):
    fleet.launcher.start_zygotes()
    child = fleet.start("actor-0")
    until(lambda: (fleet.poll(0.1), child.log.tail(1))[1], "the child has said what it started", 20)
    started = int(child.log.tail(1)[0])

    launching.end(child, signal.SIGKILL)

    assert ended(fleet) == [child]
    assert child.describe_end() == "was killed by SIGKILL"
    until(lambda: _is_gone(started), "what the child started is gone", 20)


@pytest.mark.parametrize("fleet", ["tests.forking_envs:WithDaemon"], indirect=True)
def test_end_of_all_children_takes_along_what_envs_started_in_sessions_of_their_own(fleet):
    own = subprocess.Popen(["sleep", "300"])  # of whoever runs this
    try:
        fleet.launcher.start_zygotes()
        child = fleet.start("actor-0")
        until(lambda: (fleet.poll(0.1), child.log.tail(1))[1], "the child has said what it started", 20)
        started = int(child.log.tail(1)[0])

        fleet.kill_all()

        assert _is_gone(started)
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
