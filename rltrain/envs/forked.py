"""Copies of an actor: an env may fork its process, and a copy that comes back from the env would act as the actor too.

Owns: whether this process is such a copy. Set by Python's own hook after a fork; a fork by native code is not seen
here, and what such a copy writes into shared memory kills it (the arena is not inherited, `shm/arena.py`).
A copy may do whatever the env made it for, as the workers of `multiprocessing` do; it only has no part in the run.
"""

from __future__ import annotations

import contextlib
import mmap
import os

is_copy = False
_shared: mmap.mmap | None = None
"""One byte that this process shares with its copies: whether one of them came back."""


def watch() -> None:
    """From now on every fork of this process is a copy."""
    global _shared
    _shared = mmap.mmap(-1, 1)
    os.register_at_fork(after_in_child=_mark)


def _mark() -> None:
    global is_copy
    is_copy = True


def end_copy() -> None:
    """Leave the process where it is a copy, with a line in the log; return in the process itself."""
    if is_copy:
        if _shared is not None:
            _shared[0] = 1
        with contextlib.suppress(OSError):
            os.write(2, _WORDS.format(pid=os.getpid()).encode())
        os._exit(1)


def has_ended_copies() -> bool:
    """Whether a copy came back from the env and was ended."""
    return _shared is not None and _shared[0] == 1


_WORDS = (
    "The environment forked its process, and the copy (pid {pid}) came back from it: it has no part in the run and is "
    "ended here. A child that an environment forks must end by itself, with os._exit() or by multiprocessing.\n"
)
