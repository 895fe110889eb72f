"""Commands of a bench: what they printed, and that nothing of them is left when their time is over."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import psutil
import pytest

from rltrain.bench import command
from rltrain.bench.command import OverdueError, run_to_end
from tests.runs import until

pytestmark = pytest.mark.timeout(60)

STUBBORN = """
import signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("no", flush=True))
print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
while True:
    time.sleep(0.1)
"""
POLITE = """
import subprocess, time
child = subprocess.Popen(["sleep", "1000"])
try:
    time.sleep(1000)
except KeyboardInterrupt:
    child.terminate(); child.wait(); print("ended it", child.pid)
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Short waits."""
    monkeypatch.setattr(command, "ASK_S", 0.5)


def is_there(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_command_that_ends_gives_its_code_and_what_it_printed():
    done = run_to_end([sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"], 30)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "2\n")


def test_command_that_does_not_listen_is_killed_with_what_it_started_in_another_session():
    with pytest.raises(OverdueError) as caught:
        run_to_end([sys.executable, "-c", STUBBORN], 2)
    said = str(caught.value).splitlines()
    assert said[1:] == ["no", "no"], "it was asked twice"
    until(lambda: not is_there(int(said[0])), "the child is gone", 10)


def test_command_that_listens_ends_what_it_started_itself(monkeypatch):
    monkeypatch.setattr(command, "ASK_S", 20)
    with pytest.raises(OverdueError, match="ended it") as caught:
        run_to_end([sys.executable, "-c", POLITE], 2, ask=signal.SIGINT)
    assert not is_there(int(str(caught.value).split()[-1]))


def test_interrupt_ends_the_command_too():
    before = set(psutil.Process().children(recursive=True))

    def interrupt():
        until(lambda: len(set(psutil.Process().children(recursive=True)) - before) == 2, "both are there")
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_to_end([sys.executable, "-c", STUBBORN])
    thread.join()
    until(lambda: set(psutil.Process().children(recursive=True)) == before, "nobody is left", 10)
