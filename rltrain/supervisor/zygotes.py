"""The processes that fork all others: one has loaded torch, one only what actors need.

Owns: their pids and the channels to them. Called by the launcher.
If one dies: children keep running; the next fork starts another, at boot it is an error.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import rltrain
from rltrain.errors import BootError
from rltrain.supervisor.logs import BoundedLog, OutputPump
from rltrain.supervisor.orphans import Orphans
from rltrain.workers.channel import Channel, ChannelClosed
from rltrain.workers.child import ENDING_SIGNALS

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ENVIRONMENT = {
    "torch": {"OPENBLAS_NUM_THREADS": "1"},  # its pool would be a thread before the forks
    "plain": dict.fromkeys(_THREAD_VARIABLES, "1"),  # actors compute on one thread
}
"""Kind -> variables of its process and of all it forks, unless the user has set them."""


class Zygote:
    """One of them.

    Args:
        kind: what it has loaded, `torch` or `plain`.
        pump: reads its output.
        orphans: has the mark that it and all that it forks carry.
    """

    def __init__(self, kind: str, pump: OutputPump, orphans: Orphans):
        self.kind, self.pump, self.orphans = kind, pump, orphans
        self.log = BoundedLog(1 << 20)
        self._process: subprocess.Popen | None = None
        self._started_s = math.inf
        self._channel: Channel | None = None

    @property
    def pid(self) -> int | None:
        """Its pid, None before it was started and after it was closed."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start it; does not wait until it has loaded anything."""
        self._started_s = time.monotonic()
        self._channel, theirs = Channel.pair()
        out_read, out_write = os.pipe()
        with _ending_signals_blocked():
            self._process = subprocess.Popen(
                python_command(
                    "from rltrain.workers.zygote import main; main()",
                    str(theirs.fileno()), str(os.getpid()), self.kind,
                ),
                stdin=subprocess.DEVNULL, stdout=out_write, stderr=out_write, pass_fds=[theirs.fileno()],
                env={**_ENVIRONMENT[self.kind], **self.orphans.environment},
            )
        self._process.returncode = 0  # reaped by the launcher, not by Popen
        os.close(out_write)
        theirs.close()
        self.pump.register(out_read, self.log)

    def fork(self, channel_fd: int, out_fd: int) -> None:
        """Ask for a child with this end of a channel and this output; it will say what its pid is."""
        request = {"fork": True}, (channel_fd, out_fd, out_fd)
        if self._channel is not None:
            try:
                return self._channel.send(*request)
            except ChannelClosed:
                self._channel.close()
        self.start()
        assert self._channel is not None, "it has just been started"
        return self._channel.send(*request)

    def kill(self) -> None:
        """Kill it, as it does not fork what it should; the next fork starts another."""
        if self._process is not None and self._channel is not None:
            self._channel.close()
            self._channel = None
            with contextlib.suppress(ChildProcessError):  # reaped already: its number may be another's
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(self._process.pid, signal.SIGKILL)
            self._process = None

    def check(self, statuses: dict[int, tuple[int, float]]) -> None:
        """Raise BootError when it has ended, `statuses` being exit code and time of reaped processes by pid."""
        code, at_s = statuses.get(self.pid or 0, (0, -1.0))
        if at_s >= self._started_s:
            what = "torch" if self.kind == "torch" else "gymnasium"
            end = f"The process that imports {what} for the others ended with exit code {code}."
            raise BootError("\n".join([end, *self.log.tail(20)]), died=f"zygote:{self.kind}")

    def close(self) -> None:
        """End it."""
        pid = self.pid
        if pid is not None:
            self.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command line for code of this very package, wherever that was imported from; `sys.argv[2:]` are its.

    `-P`: the working directory must not come first, where a folder named like one of our modules may lie.
    """
    package_root = str(Path(rltrain.__file__).parent.parent)
    found = "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); "
    return [sys.executable, "-P", "-c", found + code, package_root, *arguments]


@contextlib.contextmanager
def _ending_signals_blocked() -> Iterator[None]:
    """Start a child deaf to Ctrl-C and SIGTERM, until it has said that it ignores them.

    A terminal sends Ctrl-C to the whole group, and an interpreter that is just starting would die of it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
