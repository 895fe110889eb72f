"""A command in a process of its own that is ended, with all that it started, when its time is over or Ctrl-C comes.

First it is asked, as a user would ask it: a run then ends its envs and workers itself. What is left is killed.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

ASK_S = 12.0
"""For what was asked to end; a run takes `supervision.shutdown_grace_s` (10 s) at most, and stops at once when asked a
second time."""
_NUM_ASKED = 2
_KILLED_S = 5.0
_TAIL_LINES = 12


class OverdueError(Exception):
    """The time was over; the processes have ended. The message has the last lines that were printed."""


def run_to_end(
    command: Sequence[str], limit_s: float | None = None, cwd: Path | None = None, ask: int = signal.SIGTERM
) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed.

    Args:
        command: with its arguments.
        limit_s: longest time; None for any.
        cwd: working directory, or this process's.
        ask: signal by which it is asked to end, up to twice, with `ASK_S` for each.

    Raises:
        OverdueError: it was not over in time.
        KeyboardInterrupt: it was interrupted; all has ended as well.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise OverdueError(last_lines(_end(process, ask))) from error
    except BaseException:
        _end(process, ask)
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def last_lines(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines that a process printed, those of its errors at the end."""
    return "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])


def _end(process: subprocess.Popen[str], ask: int) -> subprocess.CompletedProcess[str]:
    """End a process and all below it; returns what it printed, as far as that can be had."""
    out = err = ""
    known = _family(process.pid)  # who is orphaned meanwhile is found here alone
    try:
        for _ in range(_NUM_ASKED):
            process.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=ASK_S)
                break
    finally:  # also where somebody is in a hurry and presses Ctrl-C again
        for each in {*known, *_family(process.pid)}:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, err = process.communicate(timeout=_KILLED_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _family(pid: int) -> list[psutil.Process]:
    """All processes below one, whatever session they are in."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
