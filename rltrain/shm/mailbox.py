"""Mailboxes: one per lane, through which its actor asks for actions and the inference server answers.

Owns: the regions `doorbell` and `mailboxes`.
Written by: the lane's actor (request and its payload, live flag, progress), the server (reply), the supervisor for a
dead actor (live flag, reply).
Read by: the server (requests), the actor (reply), the next life of either.
Blocks on: the server on the doorbell, an actor on its lane's reply. Unblocked by: `post`; `reply`.
If the peer dies: an open request stays open until a server answers it, the supervisor cancels it, or the lane's
actor posts again; `progress` tells a restarted actor which fragment to begin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrain import native
from rltrain.native import ffi, lib
from rltrain.shm.arena import Arena


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """Open requests, oldest first: int64 [n] each. The next `pending` call writes over these arrays."""

    lane: np.ndarray
    slot: np.ndarray
    step: np.ndarray
    fragment_index: np.ndarray
    required_version: np.ndarray
    """The policy version the lane needs; -1 for any."""
    arrival_ns: np.ndarray
    """When the request was posted, on CLOCK_MONOTONIC."""


_COLUMNS = ("lane", "slot", "step", "fragment_index", "required_version", "arrival_ns")


class Mailboxes:
    """All mailboxes of an arena, for actors, the server and the supervisor.

    Concurrency: one actor process per lane, one server process.
    """

    def __init__(self, arena: Arena):
        self.num_lanes = arena.layout.num_lanes
        self._view = arena.view("mailboxes")
        self._doorbell = native.pointer("rl_doorbell *", arena.address("doorbell"))
        self._boxes = native.pointer("rl_mailbox *", arena.address("mailboxes"))
        self._served = ffi.new("uint32_t[]", self.num_lanes)
        self._columns = {name: np.zeros(self.num_lanes, np.int64) for name in _COLUMNS}
        self._pending = ffi.new("rl_pending *", {"served": self._served})
        for name, column in self._columns.items():
            setattr(self._pending, name, native.pointer("int64_t *", native.address_of(column)))
        self._by_count: dict[int, PendingRequests] = {}

    # -- actor ------------------------------------------------------------------------------------------------

    def post(self, lane: int, slot: int, step: int, fragment_index: int, required_version: int | None) -> None:
        """Ask for the actions of one step of the lane's env group.

        Args:
            lane: the lane; its last request must be answered, or be that of a dead process.
            slot: the slot whose rows hold the observations.
            step: row within the slot.
            fragment_index: index of the fragment within the lane.
            required_version: the policy version to answer with, None for any.

        Concurrency: the lane's actor only; never blocks; a system call only when the server sleeps. The observation
        rows written before are seen by the server. A crash leaves either no request or a whole one.
        """
        self._check(lane)
        lib.rl_mailbox_post(
            self._doorbell, self._boxes, lane, slot, step, fragment_index,
            -1 if required_version is None else required_version,
        )

    def wait_reply(self, lane: int, timeout_s: float) -> bool:
        """Wait until the lane's last request is answered.

        Returns:
            Whether it is; False after `timeout_s` or when a signal arrived.

        Concurrency: the lane's actor only; blocks. The rows that the server wrote are seen after True.
        """
        self._check(lane)
        return lib.rl_mailbox_wait_reply(self._boxes, lane, native.nanoseconds(timeout_s)) == 0

    def progress(self, lane: int) -> int:
        """Return the next fragment index of the lane, which outlives its actor; 0 at first."""
        self._check(lane)
        return lib.rl_mailbox_progress(self._boxes, lane)

    def set_progress(self, lane: int, fragment_index: int) -> None:
        """Note the next fragment index of the lane."""
        self._check(lane)
        lib.rl_mailbox_set_progress(self._boxes, lane, fragment_index)

    # -- server -----------------------------------------------------------------------------------------------

    @property
    def doorbell(self) -> int:
        """A count of requests posted, modulo 2**31; read it before `pending`, then pass it to `wait_request`."""
        return lib.rl_doorbell_count(self._doorbell)

    def wait_request(self, seen: int, timeout_s: float) -> int:
        """Wait until the doorbell differs from `seen`, the time is over or a signal arrived. Returns the doorbell.

        Concurrency: the server only; blocks.
        """
        return lib.rl_doorbell_wait(self._doorbell, seen, native.nanoseconds(timeout_s))

    def pending(self) -> PendingRequests:
        """Return all open requests, oldest first, those of an earlier server's life included.

        Concurrency: the server only; never blocks. The arrays are written over by the next call.
        """
        num = lib.rl_mailbox_pending(self._boxes, self.num_lanes, self._pending)
        requests = self._by_count.get(num)
        if requests is None:
            requests = self._by_count[num] = PendingRequests(*(self._columns[name][:num] for name in _COLUMNS))
        return requests

    def reply(self, lanes: np.ndarray, policy_version: int) -> int:
        """Answer the requests that `pending` of this object returned last for these lanes, and wake their actors.

        Args:
            lanes: integers [n].
            policy_version: the version the answers were made with.

        Returns:
            How many of the requests were no longer there, since their actor died and posted anew.

        Raises:
            IndexError: a lane is out of range; nothing was answered.

        Concurrency: the server only; never blocks. A system call only for actors that sleep. The rows written
        before are seen by the actors.
        """
        lanes = np.ascontiguousarray(lanes, np.int64)
        num_late = lib.rl_mailbox_reply(
            self._boxes, self.num_lanes, ffi.from_buffer("int64_t[]", lanes), len(lanes), self._served, policy_version
        )
        if num_late < 0:
            raise IndexError(f"lanes {lanes.tolist()} must be in [0, {self.num_lanes})")
        return num_late

    def reply_version(self, lane: int) -> int:
        """Return the policy version of the lane's last answer."""
        self._check(lane)
        return lib.rl_mailbox_reply_version(self._boxes, lane)

    def set_live(self, lane: int, live: bool) -> None:
        """Say whether the lane will post requests: its actor sets it, the supervisor clears it after a death."""
        self._check(lane)
        lib.rl_mailbox_set_live(self._boxes, lane, live)

    def cancel(self, lane: int) -> None:
        """Close the lane's open request without an answer; an answer under way counts as late.

        Concurrency: the supervisor, after the lane's actor is reaped. `post` does the same for its last life.
        """
        self._check(lane)
        lib.rl_mailbox_cancel(self._boxes, lane)

    def num_live(self) -> int:
        """Return how many lanes are live: as many requests the server may wait for."""
        return lib.rl_mailbox_num_live(self._boxes, self.num_lanes)

    def _check(self, lane: int) -> None:
        if not 0 <= lane < self.num_lanes:
            raise IndexError(f"lane {lane} is outside [0, {self.num_lanes})")
