"""The weight board: the two newest policy versions, which readers copy without ever blocking the learner.

Owns: the regions `weights` and `weight_buffers`; version v lies in buffer v % 2.
Written by: the learner. Read by: the inference server, local policies, the evaluator, the supervisor.
Blocks on: `wait_version`. Unblocked by: `publish`.
If the peer dies: a learner that dies while publishing leaves the other version whole; the half-written one is not
handed out until a restarted learner has published it anew.
"""

from __future__ import annotations

import numpy as np

from rltrain import native
from rltrain.native import ffi, lib
from rltrain.shm.arena import Arena


class WeightBoard:
    """The weight board of an arena.

    Concurrency: one writing process, any readers.
    """

    def __init__(self, arena: Arena):
        self._view = arena.view("weights")
        self.weight_bytes = arena.layout.weight_bytes
        self._stride = arena.layout.weight_stride_bytes
        self._board = native.pointer("rl_board *", arena.address("weights"))
        self._buffers = native.pointer("uint8_t *", arena.address("weight_buffers"))

    def publish(self, version: int, flat: np.ndarray) -> None:
        """Put a version on the board and announce it.

        Args:
            version: >= 0; one more than the newest, after a boot any.
            flat: uint8 [weight_bytes], C-contiguous.

        Raises:
            ValueError: wrong size, dtype or version.

        Concurrency: the learner only; never blocks; releases the GIL. About 0.2 ms per MiB.
        """
        self._check(flat)
        if version < 0:
            raise ValueError(f"version {version} must be >= 0")
        lib.rl_board_publish(
            self._board, self._buffers, self._stride, version, ffi.from_buffer("uint8_t[]", flat), self.weight_bytes
        )

    @property
    def latest_version(self) -> int:
        """The newest version on the board; -1 before the first publication."""
        return lib.rl_board_latest(self._board)

    def read(self, version: int | None, out: np.ndarray) -> int | None:
        """Copy a version off the board.

        Args:
            version: which; None for the newest.
            out: uint8 [weight_bytes], C-contiguous. Undefined when None is returned.

        Returns:
            The version copied, or None when it is gone or not there yet.

        Concurrency: any process; never blocks; releases the GIL. Never returns a mixture of two versions.
        """
        self._check(out)
        wanted = -1 if version is None else version
        found = lib.rl_board_read(
            self._board, self._buffers, self._stride, wanted, ffi.from_buffer("uint8_t[]", out, require_writable=True),
            self.weight_bytes,
        )
        return found if found >= 0 else None

    def wait_version(self, at_least: int, timeout_s: float) -> int:
        """Wait until the newest version is at least this one, the time is over or a signal arrived.

        Returns:
            `latest_version`.

        Concurrency: any process; blocks.
        """
        return lib.rl_board_wait(self._board, at_least, native.nanoseconds(timeout_s))

    def _check(self, flat: np.ndarray) -> None:
        if flat.dtype != np.uint8 or flat.shape != (self.weight_bytes,) or not flat.flags.c_contiguous:
            raise ValueError(f"weights must be C-contiguous uint8 [{self.weight_bytes}], not {flat.dtype} {flat.shape}")
