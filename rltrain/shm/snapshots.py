"""Snapshot areas: the state of each lane's envs at the beginning of a fragment, for checkpoints.

Owns: the regions `snapshots` and `snapshot_areas`.
Written by: the lane's actor; by the learner before actors start, when a run is resumed. Read by: the other of the two.
Blocks on: nothing; `Control.notify` tells the learner that there is something to read.
If the peer dies: a snapshot that was half written is not handed out; one that was whole stays.
"""

from __future__ import annotations

import numpy as np

from rltrain import native
from rltrain.native import ffi, lib
from rltrain.shm.arena import Arena

_TRIES = 3
"""A writer writes once per checkpoint, so a second look finds what the first one disturbed."""


class SnapshotArea:
    """The snapshot areas of an arena.

    Concurrency: one writer per lane at a time, any readers.
    """

    def __init__(self, arena: Arena):
        layout = arena.layout
        self.num_lanes = layout.num_lanes
        self.room_bytes = layout.snapshot_bytes
        self._view = arena.view("snapshots")
        first_lock, first_area = arena.address("snapshots"), arena.address("snapshot_areas")
        self._places = [
            (
                native.pointer("rl_seqlock *", first_lock + lane * lib.RL_SEQLOCK_BYTES),
                native.pointer("uint8_t *", first_area + lane * layout.snapshot_stride_bytes),
            )
            for lane in range(self.num_lanes)
        ]

    def write(self, lane: int, fragment_index: int, payload: bytes) -> bool:
        """Replace the lane's snapshot.

        Args:
            lane: the lane.
            fragment_index: the fragment that begins in this state.
            payload: any bytes.

        Returns:
            False, nothing written, when the payload is larger than `room_bytes`.

        Concurrency: never blocks. A crash leaves no snapshot for the lane.
        """
        self._check(lane)
        if len(payload) > self.room_bytes:
            return False
        lock, area = self._places[lane]
        lib.rl_seqlock_write(lock, area, fragment_index, ffi.from_buffer("uint8_t[]", payload), len(payload))
        return True

    def read(self, lane: int) -> tuple[int, bytes] | None:
        """Return the lane's newest snapshot as (fragment_index, payload), or None when there is no whole one.

        Concurrency: never blocks.
        """
        self._check(lane)
        lock, area = self._places[lane]
        payload = np.empty(self.room_bytes, np.uint8)
        tag = ffi.new("int64_t *")
        for _ in range(_TRIES):
            nbytes = lib.rl_seqlock_read(lock, area, self.room_bytes, tag, ffi.from_buffer("uint8_t[]", payload))
            if nbytes >= 0:
                return tag[0], payload[:nbytes].tobytes()
        return None

    def _check(self, lane: int) -> None:
        if not 0 <= lane < self.num_lanes:
            raise IndexError(f"lane {lane} is outside [0, {self.num_lanes})")
