"""A run on a terminal and without one: what is on the screen, and that the terminal is given back as it was."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from tests.runs import LIMIT_S, Ended, toy, train, until

pytestmark = pytest.mark.timeout(300)

SHOW, HIDE, ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?25h", b"\x1b[?25l", b"\x1b[?1049h", b"\x1b[?1049l"
LONG = {"run.total_env_steps": 10**9, "log.every_env_steps": 256}
CTRL_C, CTRL_BACKSLASH = b"\x03", b"\x1c"
AS_CONTROLLING_TERMINAL = (
    sys.executable, "-c", "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])",
)  # fmt: skip


class Terminal:
    """A pseudo-terminal of 80x30 with a run on it, its output collected by a thread until the far end closes."""

    def __init__(self, directory: Path, options: dict, prefix: tuple[str, ...] = AS_CONTROLLING_TERMINAL):
        self.ours, theirs = os.openpty()
        termios.tcsetwinsize(self.ours, (30, 80))
        self.before = termios.tcgetattr(theirs)
        self.screen = bytearray()
        self.run = train(
            directory, options, streams=(theirs, theirs, theirs), prefix=prefix,
            environ={"TERM": "xterm-256color"},
        )  # fmt: skip
        self.theirs = theirs  # kept open: its attributes are looked at in the end
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self.ours, 1 << 16)
            except OSError:
                return
            if not content:
                return
            self.screen += content

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.ours, keys)

    def wait_drawn(self) -> None:
        """Wait until the dashboard was drawn and something was trained."""
        until(lambda: self.run.ended_or(lambda: self.run.has_curves() and HIDE in self.screen), "the dashboard")

    def end(self) -> tuple[Ended, list]:
        """Wait for the run's end; returns it, its screen as stdout, and the terminal's attributes then."""
        self.run.process.wait(LIMIT_S)
        after = termios.tcgetattr(self.theirs)
        os.close(self.theirs)
        self.reader.join(LIMIT_S)
        os.close(self.ours)
        text = self.screen.decode(errors="replace")
        return Ended(self.run.process.returncode, text, "", self.run.directory), after


def end_normally(terminal: Terminal) -> None:
    pass


def press_once(terminal: Terminal) -> None:
    terminal.wait_drawn()
    terminal.type(CTRL_C)


def press_twice(terminal: Terminal) -> None:
    """The second one while the run still waits for the data that is to come with the first."""
    terminal.wait_drawn()
    for actor in ("actor-0", "actor-1"):
        terminal.run.children()[actor].send_signal(signal.SIGSTOP)
    terminal.type(CTRL_C)
    until(lambda: b"again stops at once" in terminal.screen, "the warning")
    terminal.type(CTRL_C)


def press_backslash(terminal: Terminal) -> None:
    terminal.wait_drawn()
    terminal.type(CTRL_BACKSLASH)


def send_term(terminal: Terminal) -> None:
    terminal.wait_drawn()
    terminal.run.signal(signal.SIGTERM)


CHATTY = {"env.id": "tests.rude_envs:Chatty", "env.kwargs.n": 20}
ENDINGS = {
    "normal": ({**CHATTY, "run.total_env_steps": 1024}, end_normally, 0, "finished"),
    "ctrl-c": (LONG, press_once, 130, "stopped"),
    "ctrl-c twice": (LONG, press_twice, 130, "SIGINT, then SIGINT: stopped at once"),
    "ctrl-backslash": (LONG, press_backslash, 131, "SIGQUIT: stopped at once"),
    "sigterm": (LONG, send_term, 143, "stopped"),
    "env error": ({**LONG, **toy("Boom", k=57, n=20), "supervision.max_restarts": 0}, end_normally, 4, "boom"),
}


@pytest.fixture(scope="module")
def terminals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminals")
    started, found = {}, {}
    try:
        for name, (options, *_) in ENDINGS.items():
            started[name] = Terminal(folder / name.replace(" ", "-"), options)
        for name, terminal in started.items():
            ENDINGS[name][1](terminal)
            found[name] = (*terminal.end(), terminal)
            until(lambda: not terminal.run.survivors(), f"{name}: no process is left", limit_s=15)  # noqa: B023
    finally:
        for terminal in started.values():
            terminal.run.__exit__()
    return found


@pytest.mark.parametrize("name", ENDINGS)
def test_terminal_is_given_back_whatever_the_end(terminals, name):
    ended, after, terminal = terminals[name]
    code, text = ENDINGS[name][2:]
    screen = bytes(terminal.screen)
    assert ended.returncode == code, ended.stdout[-2000:]
    assert screen.rfind(SHOW) > screen.rfind(HIDE) >= 0, "the cursor was hidden and is shown"
    assert screen.count(ENTER_SCREEN) == screen.count(LEAVE_SCREEN)
    assert after == terminal.before, "echo, line mode and the rest"
    last_words = ended.stdout[ended.stdout.rfind(SHOW.decode()) :]
    assert text in last_words, "it stands below what was drawn"
    assert "Traceback" not in last_words or name == "env error"
    assert not re.search(r"\x1b\[\d*[AJ]", last_words.partition("error:")[2]), "nothing is drawn over it"


@pytest.mark.parametrize(("name", "has_checkpoint"), [("ctrl-c", True), ("sigterm", True), ("env error", True)])
def test_checkpoint_is_written_whatever_ends_training(terminals, name, has_checkpoint):
    assert bool(terminals[name][0].checkpoints) is has_checkpoint


@pytest.mark.parametrize(("name", "code"), [("ctrl-c twice", 130), ("ctrl-backslash", 131), ("sigterm", 143)])
def test_stopped_run_says_so_in_its_summary_also_when_it_was_stopped_at_once(terminals, name, code):
    summary = terminals[name][0].summary
    assert (summary["state"], summary["exit_code"]) == ("stopped", code)
    assert summary["env_steps"] > 0


def test_output_of_envs_is_in_the_logs_and_not_on_the_screen(terminals):
    ended, _, _ = terminals["normal"]
    assert "chatty" not in ended.stdout
    logs = ended.log("actor-0") + ended.log("actor-1")
    lines = ("chatty by print", "chatty to descriptor 1", "chatty to descriptor 2")
    counts = {logs.count(line) for line in lines}
    assert len(counts) == 1, "every step writes each line once"
    assert counts.pop() >= ended.summary["env_steps"]


@pytest.fixture(scope="module")
def piped(tmp_path_factory):
    """A run with stdin closed, both outputs in files; and one whose reader goes after the first line."""
    folder = tmp_path_factory.mktemp("piped")
    closing = ("sh", "-c", 'exec "$@" 0<&-', "sh")
    head = ("sh", "-c", '"$@" | head -n 1 > first.txt', "sh")
    short = CHATTY
    with train(folder / "closed", short, prefix=closing) as one, train(folder / "head", short, prefix=head) as two:
        return one.end(), two.end()


def test_run_without_terminal_prints_plain_lines_alone(piped):
    ended = piped[0].finished()
    assert "\x1b" not in ended.stdout + ended.stderr
    assert "chatty" not in ended.stdout + ended.stderr
    assert len(ended.stdout.splitlines()) > 3
    assert len(ended.stdout) < 4000
    assert ended.stderr == ""


def test_run_goes_on_quietly_when_its_reader_has_gone(piped):
    ended = piped[1]
    assert ended.stderr == ""
    assert (ended.directory / "first.txt").read_text().startswith("run run:")
    assert ended.summary["state"] == "finished"


@pytest.mark.stress
def test_run_in_a_log_file_for_a_minute_is_short_and_plain(tmp_path):
    """Case T02; takes one minute, on a machine that does nothing else."""
    into_log = ("sh", "-c", 'exec "$@" > log 2>&1 < /dev/null', "sh")
    log = tmp_path / "log"
    with train(tmp_path, {"run.total_env_steps": 10**9}, prefix=into_log) as run:
        began = time.monotonic()
        until(lambda: log.exists() and log.read_text().count("\n") >= 1, "the first line", limit_s=10)
        until(lambda: time.monotonic() > began + 60, "a minute")
        run.signal(signal.SIGTERM)
        assert run.end().returncode == 143
    content = log.read_bytes()
    assert b"\x1b" not in content
    assert b"\r" not in content
    assert len(re.findall(rb"(?m)^[\d.]+ s  steps", content)) >= 3
    assert len(content) < 100_000
