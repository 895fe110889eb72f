"""The first code in every child process: ties it to the supervisor, then hands over to its role.

Owns: the process's signal dispositions, logging and exit.
Written by, read by: this process alone.
Blocks on: the first message (role and settings). Unblocked by: the supervisor.
If the peer dies: the kernel kills this process (PR_SET_PDEATHSIG).

Every child is forked from a zygote (`zygote.py`), which has imported what its role needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import TracebackType

from rltrain import registry
from rltrain.envs import forked
from rltrain.errors import RltrainError
from rltrain.workers.channel import Channel, ChannelClosed

_PACKAGE = str(Path(__file__).parents[1]) + "/"

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
PID_VARIABLE = "RLTRAIN_CHILD"
"""Set to its pid in each child: what its env starts carries it, and is found by it (`supervisor/orphans.py`)."""
_KEPT_CHARACTERS = 5_000
"""Of each end of a text that is told to the supervisor."""


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; leave at once if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def ignore_ending_signals() -> None:
    """Leave Ctrl-C and SIGTERM to the supervisor, which ends its children itself; they come blocked from there."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def run_child(channel_fd: int, parent_pid: int) -> None:
    """Take the first message, run the role it names, and leave the process; never returns.

    Exit code: 0 after the role's `main` returned, else the error's own (1 for an unexpected exception). The error is
    sent to the supervisor with its traceback before.
    """
    die_with(parent_pid)
    os.setpgid(0, 0)  # so that what an env starts can be found, and ended with it
    os.environ[PID_VARIABLE] = str(os.getpid())
    ignore_ending_signals()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the supervisor asks a silent child where it hangs
    forked.watch()
    channel = Channel(socket.socket(fileno=channel_fd))
    code = 1
    try:
        channel.send({"pid": os.getpid()})
        first, fds = channel.recv(None)
        _configure(first["name"])
        _keep_on(first["settings"].get("cores"), channel)
        registry.look_in(first["settings"].get("code_dir", "auto"))
        module = importlib.import_module(f"rltrain.workers.{first['role']}")
        gc.freeze()
        module.main(channel, first["settings"], fds)
        code = 0
    except ChannelClosed:
        pass
    except BaseException as error:
        forked.end_copy()
        code = _report(channel, error)
    finally:
        try:
            forked.end_copy()
            _flush()
        finally:
            # Without the interpreter's teardown, which takes torch 0.8 s; everything worth keeping is written by now.
            os._exit(code)


def _configure(name: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True
    )
    name_process(f"rl:{name}")


def _keep_on(cores: list[int] | None, channel: Channel) -> None:
    """Keep this process, and the threads and processes that it starts from now on, on some cores; None: on any."""
    if cores is None:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:  # the machine took one away since the run began
        text = f"pipeline.pin_cores: cores {cores} cannot be had ({error.strerror}); it runs on any"
        channel.send({"warning": text})


def name_process(name: str) -> None:
    """Set what `ps` and `top` call this process; at most 15 bytes are kept."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15].encode())


def _flush() -> None:
    """Write what is buffered; an env may have closed or replaced either stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _report(channel: Channel, error: BaseException) -> int:
    """Tell the supervisor first: the log may be gone, as an env is free to close its streams."""
    text = _formatted(error, error.__traceback__)
    code = error.exit_code if isinstance(error, RltrainError) else 1
    report = {
        "kind": type(error).__name__,
        "message": _shorten(_message(error)),
        "notes": _notes(error),
        "traceback": _shorten(_formatted(error, _users_part(error.__traceback__))),
        "exit_code": code,
    }
    with contextlib.suppress(ChannelClosed, OSError):
        channel.send({"error": report})
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
    return code


def _message(error: BaseException) -> str:
    """Return an exception's message; one of the user's may raise when it is asked for it."""
    try:
        return str(error)
    except BaseException as another:
        return f"it does not tell its message: str() of it raised {type(another).__name__}"


def _formatted(error: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # an attribute of its that raises
        return "".join([*traceback.format_tb(trace), type(error).__name__, ": ", _message(error), "\n"])


def _notes(error: BaseException) -> list[str]:
    """Return what was added to it on its way: which env, which step."""
    notes = getattr(error, "__notes__", ())
    return [_shorten(note) for note in notes if isinstance(note, str)] if isinstance(notes, list) else []


def _shorten(text: str) -> str:
    """Keep both ends of what may be of any length: a traceback begins with the place and ends with the message."""
    num_left_out = len(text) - 2 * _KEPT_CHARACTERS
    if num_left_out <= 0:
        return text
    cut = f"\n[{num_left_out:,} characters left out here; the log has them]\n"
    return text[:_KEPT_CHARACTERS] + cut + text[-_KEPT_CHARACTERS:]


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame on that is not rltrain's; the whole one where all are."""
    part = trace
    while part is not None and part.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        part = part.tb_next
    return part or trace
