"""The fleet with real processes that are not workers: what it hears of their ends."""

from __future__ import annotations

import signal
import sys

import pytest

from rltrain.supervisor import launcher as launching
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.launcher import Launcher
from rltrain.supervisor.logs import OutputPump
from rltrain.supervisor.roles import RolePlan
from tests.runs import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def fleet():
    plan = RolePlan("actor-0", "actor", 0, {}, needs_torch=False)
    made = Fleet([plan], Launcher(OutputPump()), max_log_mib=1)
    yield made
    made.close()


def run_instead(monkeypatch, code: str) -> None:
    monkeypatch.setattr(launching, "_command", lambda module, fd: [sys.executable, "-c", code])


def ended(fleet: Fleet) -> list:
    found = []
    until(lambda: found.extend(fleet.poll(0.1).ended) or found, "the end is reported", 20)
    return found


def test_child_that_ends_before_its_first_word_is_reported_with_its_exit_code(fleet, monkeypatch):
    run_instead(monkeypatch, "import sys; print('no such module'); sys.exit(3)")

    child = fleet.start("actor-0")

    assert ended(fleet) == [child]
    assert child.describe_end() == "ended with exit code 3"
    assert child.log.tail(1) == ["no such module"]
    assert fleet.launcher.statuses == {}
    assert fleet.alive() == []


def test_child_killed_by_a_signal_takes_along_what_it_started(fleet, monkeypatch):
    run_instead(
        monkeypatch,
        "import os, subprocess, sys, time; os.setpgid(0, 0); p = subprocess.Popen(['sleep', '300']);"
        "print(p.pid, flush=True); time.sleep(300)",
    )
    child = fleet.start("actor-0")
    until(lambda: (fleet.poll(0.1), child.log.tail(1))[1], "the child has said what it started", 20)
    started = int(child.log.tail(1)[0])

    launching.end(child, signal.SIGKILL)

    assert ended(fleet) == [child]
    assert child.describe_end() == "was killed by SIGKILL"
    until(lambda: _is_gone(started), "what the child started is gone", 20)


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
