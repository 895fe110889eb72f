"""Starting processes and hearing of their end.

Actors are executed afresh and never load torch; the other roles are forked from a zygote that has loaded it. All of
them become children of this process (a subreaper), die with it, and write stdout and stderr into pipes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import rltrain
from rltrain.errors import BootError
from rltrain.supervisor.logs import BoundedLog, OutputPump
from rltrain.workers.channel import Channel, ChannelClosed
from rltrain.workers.child import ENDING_SIGNALS

_PR_SET_CHILD_SUBREAPER = 36
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass
class Child:
    """A process and what is known of it."""

    name: str
    role: str
    row: int
    """Its counter row."""
    channel: Channel
    log: BoundedLog
    started_s: float
    pid: int | None = None
    is_ready: bool = False
    error: dict | None = None
    """What it reported before it ended: kind, message, traceback, exit_code."""
    status: int | None = None
    """Its exit code once it has ended, negative for a signal."""
    is_silent: bool = False
    """The supervisor killed it because its heartbeat stopped."""

    @property
    def is_alive(self) -> bool:
        """Whether it has not been reaped."""
        return self.status is None

    def describe_end(self) -> str:
        """Say in words how it ended."""
        if self.status is None:
            return "is alive"
        if self.is_silent:
            return "gave no sign of life and was killed"
        if self.status >= 0:
            return f"ended with exit code {self.status}"
        return f"was killed by {signal.Signals(-self.status).name}"

    def hint(self) -> str:
        """Say what may be behind the end, a sentence after a space, or nothing."""
        is_killed = self.status == -signal.SIGKILL and not self.is_silent
        return " The kernel does that when memory runs out." if is_killed else ""


@dataclass
class Launcher:
    """Starts children and reaps them. One for each run, used by one thread."""

    pump: OutputPump
    zygote: subprocess.Popen | None = None
    zygote_channel: Channel | None = None
    zygote_log: BoundedLog = field(default_factory=lambda: BoundedLog(1 << 20))
    statuses: dict[int, int] = field(default_factory=dict)
    """Exit codes by pid, of children that were reaped before their first message told whose pid it is."""

    def start_zygote(self) -> None:
        """Start the process that imports torch; does not wait for it."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.zygote_channel, theirs = Channel.pair()
        out_read, out_write = os.pipe()
        with _ending_signals_blocked():
            self.zygote = subprocess.Popen(
                _command("zygote", theirs.fileno()),
                stdin=subprocess.DEVNULL, stdout=out_write, stderr=out_write, pass_fds=[theirs.fileno()],
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},  # its pool would be a thread before the forks
            )
        os.close(out_write)
        theirs.close()
        self.pump.register(out_read, self.zygote_log)

    def check_zygote(self) -> None:
        """Raise BootError when the zygote has ended: torch could not be imported."""
        if self.zygote is not None and self.zygote.pid in self.statuses:
            tail = "\n".join(self.zygote_log.tail(20))
            raise BootError(f"The process that imports torch ended with {self.statuses[self.zygote.pid]}.\n{tail}")

    def start(self, name: str, role: str, row: int, settings: dict, log: BoundedLog, needs_torch: bool) -> Child:
        """Start a child; does not wait for it.

        Args:
            name: `actor-3`, `learner`, ...
            role: module under `rltrain.workers` with a `main`.
            row: its counter row.
            settings: what its `main` gets, JSON-able.
            log: where its output goes.
            needs_torch: fork it from the zygote instead of executing it afresh.
        """
        channel, theirs = Channel.pair()
        out_read, out_write = os.pipe()
        pid: int | None = None
        if needs_torch:
            self._fork_from_zygote(theirs.fileno(), out_write)  # it will say what its pid is
        else:
            with _ending_signals_blocked():
                process = subprocess.Popen(
                    _command("child", theirs.fileno()),
                    stdin=subprocess.DEVNULL, stdout=out_write, stderr=out_write, pass_fds=[theirs.fileno()],
                    env=_one_thread_environment(),
                )
            process.returncode = 0  # reaped by `reap`, not by Popen
            pid = process.pid
        os.close(out_write)
        theirs.close()
        self.pump.register(out_read, log)
        try:
            channel.send({"name": name, "role": role, "settings": settings})
        except ChannelClosed:
            pass  # it has ended already, which is found like any other end
        return Child(name, role, row, channel, log, time.monotonic(), pid)

    def _fork_from_zygote(self, channel_fd: int, out_fd: int) -> None:
        request = {"fork": True}, (channel_fd, out_fd, out_fd)
        assert self.zygote_channel is not None, "start_zygote comes first"
        try:
            self.zygote_channel.send(*request)
        except ChannelClosed:
            self.start_zygote()
            self.zygote_channel.send(*request)

    def reap(self, children: list[Child]) -> list[Child]:
        """Return the children that have ended since the last call."""
        while True:
            try:
                ended_one = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended_one is None:
                break
            _kill_group(ended_one.si_pid)  # before it is reaped, so that its number cannot be another's yet
            pid, status = os.waitpid(ended_one.si_pid, 0)
            self.statuses[pid] = os.waitstatus_to_exitcode(status)
        ended = [child for child in children if child.is_alive and child.pid in self.statuses]
        for child in ended:
            assert child.pid is not None, "its pid is among the reaped ones"
            child.status = self.statuses.pop(child.pid)
        return ended

    def close(self) -> None:
        """End the zygote."""
        if self.zygote is not None and self.zygote_channel is not None:
            self.zygote_channel.close()
            self.zygote.kill()
            self.zygote.returncode = 0
            try:
                os.waitpid(self.zygote.pid, 0)
            except ChildProcessError:
                pass
            self.zygote = None


def _command(module: str, channel_fd: int) -> list[str]:
    """The command line of `rltrain.workers.<module>`, of this very package wherever it was imported from.

    `-P`: the working directory must not come first, where a folder named like one of our modules may lie.
    """
    code = (
        f"import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
        f"from rltrain.workers.{module} import main; main()"
    )
    package_root = str(Path(rltrain.__file__).parent.parent)
    return [sys.executable, "-P", "-c", code, package_root, str(channel_fd), str(os.getpid())]


@contextmanager
def _ending_signals_blocked() -> Iterator[None]:
    """Start a child deaf to Ctrl-C and SIGTERM, until it has said that it ignores them.

    A terminal sends Ctrl-C to the whole group, and an interpreter that is just starting would die of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(leader: int) -> None:
    """Kill what a child's env started and left behind: each child leads a process group of its own."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _one_thread_environment() -> dict[str, str]:
    """The environment of a process that should compute on one thread; the user's own settings win."""
    return {**{name: "1" for name in THREAD_VARIABLES}, **os.environ}


def end(child: Child, number: int) -> None:
    """Send a signal to a child that may be gone."""
    if child.pid is not None and child.is_alive:
        try:
            os.kill(child.pid, number)
        except ProcessLookupError:
            pass
