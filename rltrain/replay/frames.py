"""Frames of stacked observations, each kept once: a ring for each env, and for each row the number of its last frame.

A stack whose older frames are those that the row before ended with brings one new frame. Any other - the first of an
episode with any padding, one of a restarted actor - brings all of its own, so that every stack comes out as it went in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rltrain import native
from rltrain.native import ffi, lib
from rltrain.replay.layout import NEWEST, ReplayLayout

_LOOKED_AT = 32
"""Rows that are looked at together for frames that are gone."""


class FrameRings:
    """The rings of frames of a replay.

    Args:
        layout: with a frame stack of 2 or more.
        arrays: the memory, as `ReplayLayout.arrays` says.

    Concurrency: one thread at a time.
    """

    def __init__(self, layout: ReplayLayout, arrays: dict[str, np.ndarray]):
        self.layout = layout
        names = [leaf.name for leaf in layout.spec.obs]
        self.pushed = {name: np.zeros(layout.num_lanes * layout.num_envs, np.int64) for name in names}
        """Leaf -> frames that came into each env's ring since the start."""
        self._arrays = {name: arrays[name] for name in names}
        self._newest = {name: arrays[NEWEST + name] for name in names}
        self.handles = {name: self._handle(name) for name in names}
        """For C functions that take `rl_frames`."""

    def _handle(self, name: str) -> Any:
        frames = self._arrays[name]
        return ffi.new("rl_frames *", {
            "source": native.pointer("uint8_t *", native.address_of(frames)),
            "newest": native.pointer("int64_t *", native.address_of(self._newest[name])),
            "num_frames": frames.shape[1], "stack": self.layout.frame_stack, "frame_bytes": frames[0, 0].nbytes,
        })

    def push(self, name: str, lane: int, row: int, stacks: np.ndarray) -> None:
        """Add the observations of consecutive rows.

        Args:
            name: the leaf.
            lane: number of the env group.
            row: place of the first row; the last must not lie behind the end of the lane's ring.
            stacks: [rows, N, m, ...] of the leaf's dtype.
        """
        if not stacks[0, 0].flags.c_contiguous:
            stacks = np.ascontiguousarray(stacks)
        pushed, newest, num_envs = self.pushed[name], self._newest[name], self.layout.num_envs
        for env in range(num_envs):
            ring = lane * num_envs + env
            source = native.pointer("uint8_t *", native.address_of(stacks[0, env]))
            numbers = native.pointer("int64_t *", native.address_of(newest[lane, row, env:]))
            pushed[ring] = lib.rl_replay_push(
                self.handles[name], ring, int(pushed[ring]), source, stacks.strides[0], len(stacks), numbers, num_envs
            )

    def first_whole(self, lane: int, first: int, end: int) -> int:
        """Return the first of the rows from `first` to before `end` that has lost no frame, `end` if all have.

        Args:
            lane: number of the env group.
            first: row as counted from the start; it and those behind it have not been overwritten.
            end: likewise.
        """
        rings = slice(lane * self.layout.num_envs, (lane + 1) * self.layout.num_envs)
        while first < end:
            rows = np.arange(first, min(end, first + _LOOKED_AT)) % self.layout.rows_per_lane
            lacks = np.zeros(len(rows), bool)
            for name, newest in self._newest.items():
                oldest_kept = self.pushed[name][rings] - self.layout.frames_per_env
                lacks |= (newest[lane, rows] - (self.layout.frame_stack - 1) < oldest_kept).any(axis=1)
            num_lacking = int(np.count_nonzero(lacks))  # the oldest ones: numbers of frames grow with the rows
            first += num_lacking
            if num_lacking < len(rows):
                break
        return first
