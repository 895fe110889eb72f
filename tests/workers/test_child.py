"""The first code of a child process: what it reports, how it ends, and with whom it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from rltrain.workers.channel import Channel, ChannelClosed
from tests.runs import ROOT, until

pytestmark = pytest.mark.timeout(60)

ROLE = """
import sys, types
from rltrain.workers.child import run_child
module = types.ModuleType("rltrain.workers.toy")
exec(sys.argv[3], module.__dict__)
sys.modules["rltrain.workers.toy"] = module
run_child(int(sys.argv[1]), int(sys.argv[2]))
"""
CONFIG_ERROR = "from rltrain.errors import ConfigError\ndef main(channel, settings, fds): raise ConfigError('no good')"
ECHO = "def main(channel, settings, fds):\n  channel.send({'echo': settings})\n  channel.recv(None)"
HANG = "import threading\ndef main(channel, settings, fds):\n  channel.send({'up': 1})\n  threading.Event().wait()"


@pytest.fixture
def start():
    """Start a child whose role is a piece of code; returns the process and our end of its channel."""
    started = []

    def start(role: str, parent_pid: int | None = None) -> tuple[subprocess.Popen, Channel]:
        channel, theirs = Channel.pair()
        arguments = [sys.executable, "-c", ROLE, str(theirs.fileno()), str(parent_pid or os.getpid()), role]
        process = subprocess.Popen(
            arguments, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        theirs.close()
        started.append((process, channel))
        if parent_pid is None:
            channel.send({"name": "toy-0", "role": "toy", "settings": {"n": 3}})
        return process, channel

    yield start
    for process, channel in started:
        channel.close()
        process.kill()
        process.communicate(timeout=30)


def test_child_says_its_pid_then_runs_its_role_with_its_settings(start):
    process, channel = start(ECHO)
    assert channel.recv(30)[0] == {"pid": process.pid}
    assert channel.recv(30)[0] == {"echo": {"n": 3}}
    assert psutil.Process(process.pid).name() == "rl:toy-0"
    channel.send({})
    assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("role", "kind", "code"),
    [(CONFIG_ERROR, "ConfigError", 2), ("def main(*_): raise ValueError('boom')", "ValueError", 1)],
)
def test_child_reports_the_error_of_its_role_and_ends_with_its_code(start, role, kind, code):
    process, channel = start(role)
    channel.recv(30)
    error = channel.recv(30)[0]["error"]
    assert (error["kind"], error["exit_code"]) == (kind, code)
    assert error["message"] in ("no good", "boom")
    assert "in main" in error["traceback"]
    assert process.wait(30) == code
    assert kind in process.stderr.read(), "its log has it too"


def test_child_whose_exception_cannot_tell_its_message_still_reports_where_it_was(start):
    process, channel = start("class Odd(Exception):\n  def __str__(self): raise KeyError\ndef main(*_): raise Odd")
    channel.recv(30)
    error = channel.recv(30)[0]["error"]
    assert error["kind"] == "Odd"
    assert "str() of it raised KeyError" in error["message"]
    assert "in main" in error["traceback"]
    assert process.wait(30) == 1
    assert "in main" in process.stderr.read()


def test_child_shortens_what_it_reports_but_not_what_it_logs(start):
    role = "def main(*_):\n  error = ValueError('x' * 5_000_000)\n  error.add_note('in env 3')\n  raise error"
    process, channel = start(role)
    channel.recv(30)
    error = channel.recv(30)[0]["error"]
    logged = process.communicate(timeout=30)[1]
    assert error["traceback"].startswith("Traceback")
    assert "in main" in error["traceback"]
    assert error["traceback"].endswith("in env 3\n")
    assert "characters left out here; the log has them" in error["traceback"]
    assert (len(error["traceback"]), len(error["message"])) < (11_000, 11_000)
    assert error["notes"] == ["in env 3"]
    assert len(logged) > 5_000_000


@pytest.mark.parametrize("goes_on", ["return", "raise ValueError('the copy')", "raise SystemExit(0)"])
def test_copy_that_a_role_forks_ends_where_it_comes_back_without_a_word_to_the_supervisor(start, goes_on):
    role = (
        "import os\ndef main(channel, settings, fds):\n  copy = os.fork()\n"
        f"  if copy == 0: {goes_on}\n"
        "  channel.send({'status': os.waitpid(copy, 0)[1]})\n  channel.recv(None)"
    )
    process, channel = start(role)
    channel.recv(30)
    assert channel.recv(30)[0] == {"status": 1 << 8}, "the copy reported nothing"
    channel.send({})
    assert process.wait(30) == 0
    assert "The environment forked its process" in process.stderr.read()


@pytest.mark.parametrize(
    "closing",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "os.close(1); os.close(2)",
        "sys.stdout = sys.stderr = None",
        "sys.stdout = open('/dev/full', 'w'); print('x')",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    ],
)
def test_child_whose_env_took_its_streams_away_still_reports_and_ends_with_its_code(start, closing):
    raising = f"import os, sys\ndef main(*_):\n  {closing}\n  from rltrain.errors import ConfigError\n"
    process, channel = start(raising + "  raise ConfigError('no \\udcff good')")
    channel.recv(30)
    error = channel.recv(30)[0]["error"]
    assert (error["kind"], error["message"]) == ("ConfigError", "no \udcff good")
    assert process.wait(30) == 2


def test_child_whose_channel_closes_ends_without_a_traceback(start):
    process, channel = start(ECHO)
    channel.recv(30)
    channel.recv(30)
    channel.close()
    process.wait(30)
    assert process.stderr.read() == ""


def test_child_ignores_ending_signals_and_shows_its_stack_when_asked(start):
    process, channel = start(HANG)
    channel.recv(30)
    assert channel.recv(30)[0] == {"up": 1}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        process.send_signal(number)
    assert "most recent call first" in process.stderr.readline()
    calls = iter(process.stderr.readline, "")
    assert any("in main" in call for call in calls), "the role, wherever it just is"
    assert process.poll() is None


def test_child_that_is_not_its_parents_leaves_at_once(start):
    process, channel = start(ECHO, parent_pid=1)
    assert process.wait(30) == 1
    with pytest.raises(ChannelClosed):
        channel.recv(30)


def test_child_dies_with_its_parent(tmp_path):
    """The parent in between is killed; the child, which waits for its first message, goes too."""
    between = (
        "import os, socket, subprocess, sys, time\n"
        "ours, theirs = socket.socketpair()\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(theirs.fileno()), str(os.getpid()), ''],"
        " pass_fds=[theirs.fileno()])\n"
        "ours.recv(1)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", between, ROLE], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate(timeout=30)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child is gone", limit_s=10)


def test_child_whose_cores_cannot_be_had_warns_and_goes_on(start):
    process, channel = start(ECHO, os.getpid())
    channel.send({"name": "toy-0", "role": "toy", "settings": {"cores": [100_000]}})
    assert channel.recv(30)[0] == {"pid": process.pid}
    warning = channel.recv(30)[0]["warning"]
    assert warning.startswith("pipeline.pin_cores: cores [100000] cannot be had (Invalid argument)")
    assert channel.recv(30)[0] == {"echo": {"cores": [100_000]}}
