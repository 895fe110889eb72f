"""The memory of a replay: anonymous, taken page by page as it fills, or a file with its whole room taken at once."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from rltrain.errors import ConfigError

_GIB = 1 << 30


def map_memory(num_bytes: int, file: Path | None) -> mmap.mmap:
    """Return zeroed memory.

    Args:
        num_bytes: at least so many.
        file: a file to keep it in, which loses its name at once: its room is free again when this process ends, however
            it ends. None: memory of this process.

    Raises:
        ConfigError: there is not that much room, or the file cannot be made; no file is left behind.

    Concurrency: children that this process forks do not get it: they have no part in it, and their copy would count.
    """
    num_bytes = max(num_bytes, mmap.PAGESIZE)
    memory = _anonymous(num_bytes) if file is None else _of_file(num_bytes, file)
    memory.madvise(mmap.MADV_DONTFORK)
    return memory


def _anonymous(num_bytes: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"replay.capacity needs {_in_words(num_bytes)} of memory, which this process does not get: "
            f"{error.strerror}. Use a smaller replay.capacity or replay.in_file = true, or raise `ulimit -v`."
        ) from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # a batch touches rows all over it
    return memory


def _of_file(num_bytes: int, file: Path) -> mmap.mmap:
    """Map a fresh file with all its blocks taken: a disk that is full later would kill the process with SIGBUS."""
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_file(num_bytes, file, error.strerror) from error
    try:
        os.fchmod(fd, 0o600)  # it may have been there with other rights
        disk = os.fstatvfs(fd)
        free = disk.f_bavail * disk.f_frsize
        if num_bytes > free:
            raise _no_file(num_bytes, file, f"{_in_words(free)} are free there")
        os.posix_fallocate(fd, 0, num_bytes)
        memory = mmap.mmap(fd, num_bytes)
        file.unlink()
        return memory
    except BaseException as error:
        with contextlib.suppress(OSError):
            file.unlink()
        if isinstance(error, OSError):
            raise _no_file(num_bytes, file, error.strerror) from error
        raise
    finally:
        os.close(fd)


def _no_file(num_bytes: int, file: Path, reason: str | None) -> ConfigError:
    return ConfigError(
        f"replay.in_file = true needs {_in_words(num_bytes)} in {file.parent}: {reason}. "
        "Use a smaller replay.capacity, another run.dir, or replay.in_file = false."
    )


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:,.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / 2**20:.1f} MiB"
