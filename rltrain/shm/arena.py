"""The arena: one block of shared memory per run, mapped by every process.

Owns: the memfd and its mapping.
Written by: whoever owns a region (see `README.md` here); created zeroed, which is a valid beginning of every region.
Read by: every process.
Blocks on: nothing. Unblocked by: nothing.
If the peer dies: the memory lives as long as one process has it mapped or open, and goes with the last one. It has
no name, so nothing is left behind in any folder.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from rltrain import native
from rltrain.errors import BootError, ConfigError
from rltrain.shm.free_memory import available_bytes
from rltrain.shm.layout import ArenaLayout, Region

__all__ = ["Arena", "ArenaLayout", "Region"]

_MAGIC = 0x726C747261696E01
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MIB = 1 << 20


_WORDS = ("control", "ring", "slots", "doorbell", "mailboxes", "weights", "snapshots")
"""Regions whose words say what the other memory holds; zero says nothing."""


class Arena:
    """A mapped arena. Made by `create` in the supervisor and by `attach` in every other process.

    Attributes:
        fd: the memfd; hand it to children. Closed by `close`.
        layout: what lies where.
    """

    def __init__(self, fd: int, layout: ArenaLayout):
        self.fd = fd
        self.layout = layout
        mapping = mmap.mmap(fd, layout.nbytes)
        mapping.madvise(mmap.MADV_DONTFORK)  # what an env forks has no part in the run and must not keep the memory
        # Every view keeps the mapping alive, so that closing can never pull memory away from under a user of it.
        self._bytes: np.ndarray | None = np.frombuffer(mapping, np.uint8)

    @classmethod
    def create(cls, layout: ArenaLayout) -> Arena:
        """Create the memory: zeroed, of a size nobody can change, with all pages reserved.

        Raises:
            ConfigError: there is not enough memory; names the options that make the arena smaller.

        Concurrency: supervisor only, before any other process exists.
        """
        available = available_bytes()
        if layout.nbytes > available:
            raise ConfigError(_too_large(layout, available))
        fd = os.memfd_create("rltrain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(fd, 0o600)
            _reserve(fd, layout, available)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            arena = cls(fd, layout)
        except BaseException:
            os.close(fd)
            raise
        arena.view("header", "uint64")[:2] = _MAGIC, layout.fingerprint()
        return arena

    @classmethod
    def attach(cls, fd: int, layout: ArenaLayout) -> Arena:
        """Map an arena that another process created.

        Args:
            fd: the memfd; stays the caller's, the arena keeps a duplicate.
            layout: the layout it was created with.

        Raises:
            BootError: the descriptor is not an arena of this layout.
        """
        size = os.fstat(fd).st_size
        if size != layout.nbytes:
            raise BootError(f"The arena has {size} bytes, but its layout says {layout.nbytes}: not the same run.")
        arena = cls(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3), layout)
        if arena.view("header", "uint64")[:2].tolist() != [_MAGIC, layout.fingerprint()]:
            arena.close()
            raise BootError("The arena was created with another layout: not the same run or version of rltrain.")
        return arena

    def view(self, region: str, dtype: DTypeLike = "uint8", shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Return a region as an array on the shared memory.

        Args:
            region: name in `layout.regions`.
            dtype: numpy dtype.
            shape: by default flat, all of the region.
        """
        assert self._bytes is not None, "the arena is closed"
        at = self.layout.regions[region]
        of = np.dtype(dtype)
        shape = (at.nbytes // of.itemsize,) if shape is None else shape
        return self._bytes[at.offset : at.offset + prod(shape) * of.itemsize].view(of).reshape(shape)

    def address(self, region: str) -> int:
        """Return the address of a region's first byte; valid while a view of the arena lives."""
        assert self._bytes is not None, "the arena is closed"
        return native.address_of(self._bytes) + self.layout.regions[region].offset

    def begin_anew(self) -> None:
        """Zero every shared word, as in a new arena; counters go on, and what slots and areas hold is as good as gone.

        Concurrency: supervisor only, while no other process of the run lives.
        """
        for region in _WORDS:
            self.view(region)[:] = 0

    def close(self) -> None:
        """Close the descriptor; the memory is unmapped when the last view of it is gone. May be called twice."""
        if self._bytes is not None:
            self._bytes = None
            os.close(self.fd)


def _reserve(fd: int, layout: ArenaLayout, available: int) -> None:
    """Take all pages now: later a missing page would kill a process with SIGBUS, at any moment."""
    try:
        os.ftruncate(fd, layout.nbytes)
        os.posix_fallocate(fd, 0, layout.nbytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(
                f"The shared memory needs {layout.nbytes / _MIB:.0f} MiB in one file, and this shell limits files to "
                "less: raise `ulimit -f`."
            ) from error
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise ConfigError(_too_large(layout, available)) from error
        raise


def _too_large(layout: ArenaLayout, available: int) -> str:
    slot_mib = layout.schema.slot_bytes() / _MIB
    return (
        f"The shared memory for pipeline.num_slots = {layout.num_slots} slots of {slot_mib:.2f} MiB needs "
        f"{layout.nbytes / _MIB:.0f} MiB in all, but {available / _MIB:.0f} MiB are available. "
        f"Make pipeline.num_slots, pipeline.fragment_length (now {layout.schema.fragment_length}) or "
        f"actors.envs_per_group (now {layout.schema.num_envs}) smaller, or free memory."
    )
