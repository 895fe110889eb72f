"""The trajectory ring: slots that hold one fragment each and change hands by one atomic word.

Owns: the regions `ring`, `slots` and `field:*`.
Written by: the actor that claimed a slot (rows, then meta), the inference server (action rows of open requests).
Read by: the learner's prefetch thread, after `take`; the inference server (observation rows of open requests).
Blocks on: `claim`, until a slot is FREE; `take`, until one is READY. Unblocked by: `release`; `publish`; `reclaim`.
If the peer dies: its slots stay WRITING or READING until the supervisor calls `reclaim`; no other slot is affected.

    FREE -claim-> WRITING -publish-> READY -take-> READING -release-> FREE
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain import native
from rltrain.native import ffi, lib
from rltrain.shm.arena import Arena
from rltrain.shm.row_copies import RowCopies


@dataclass(frozen=True, slots=True)
class FragmentMeta:
    """What a published fragment says about itself.

    Args:
        lane: number of its env group in the whole run.
        fragment_index: which of the lane's fragments it is.
        policy_version: behaviour version of its oldest row.
        sequence: count of the publishing process's fragments from 1, in the lower 32 bits; which life of that process
            it is, above them.
    """

    lane: int
    fragment_index: int
    policy_version: int
    sequence: int

    @property
    def life(self) -> int:
        """Which life of the publishing process it comes from."""
        return self.sequence >> 32


class TrajectoryRing(RowCopies):
    """One process's access to the ring. `publish` and `release` need the object that claimed or took the slot.

    Concurrency: any number of processes and threads, but a slot belongs to one holder at a time.
    """

    def __init__(self, arena: Arena):
        super().__init__(arena)
        self.num_slots = arena.layout.num_slots
        self._ring = native.pointer("rl_ring *", arena.address("ring"))
        self._slots = native.pointer("rl_slot *", arena.address("slots"))
        self._held = ffi.new("uint32_t[]", self.num_slots)

    def claim(self, owner: int, timeout_s: float) -> int | None:
        """Reserve a free slot: FREE -> WRITING.

        Args:
            owner: counter-row index + 1 of the calling process.
            timeout_s: longest wait; 0 means look once.

        Returns:
            The slot, or None when none became free in time or a signal arrived.

        Concurrency: blocks. A crash before `publish` leaves the slot to `reclaim`.
        """
        slot = lib.rl_ring_claim(
            self._ring, self._slots, self.num_slots, owner, native.nanoseconds(timeout_s), self._held
        )
        return slot if slot >= 0 else None

    def claim_overwriting(self, owner: int) -> int | None:
        """Reserve a free slot, else the oldest READY one, whose fragment is lost and counted in `dropped`.

        Returns:
            The slot, or None when every slot is being written or read.

        Concurrency: never blocks.
        """
        slot = lib.rl_ring_claim_overwriting(self._ring, self._slots, self.num_slots, owner, self._held)
        return slot if slot >= 0 else None

    def publish(self, slot: int, owner: int, meta: FragmentMeta) -> bool:
        """Hand a written fragment over: WRITING -> READY, behind all that were published before.

        Returns:
            False, counted in `late`, when the slot was reclaimed since it was claimed.

        Concurrency: never blocks. All rows written before are seen by whoever takes the slot.
        """
        self._check_slot(slot)
        return lib.rl_ring_publish(
            self._ring, self._slots, slot, owner, self._held, meta.lane, meta.fragment_index, meta.policy_version,
            meta.sequence,
        ) == 0

    def take(self, owner: int, timeout_s: float) -> int | None:
        """Reserve the oldest published fragment: READY -> READING.

        Args:
            owner: counter-row index + 1 of the calling process.
            timeout_s: longest wait; 0 means look once.

        Returns:
            The slot, or None when none became ready in time or a signal arrived.

        Concurrency: blocks. A crash before `release` leaves the slot to `reclaim`, which makes it READY again.
        """
        slot = lib.rl_ring_take(
            self._ring, self._slots, self.num_slots, owner, native.nanoseconds(timeout_s), self._held
        )
        return slot if slot >= 0 else None

    def release(self, slot: int, owner: int) -> bool:
        """Give a fragment's slot back: READING -> FREE.

        Returns:
            False, counted in `late`, when the slot was reclaimed since it was taken.

        Concurrency: never blocks.
        """
        self._check_slot(slot)
        return lib.rl_ring_release(self._ring, self._slots, slot, owner, self._held) == 0

    def reclaim(self, owner: int) -> int:
        """Return a dead owner's slots: WRITING -> FREE, READING -> READY (again the oldest). Returns how many.

        Concurrency: supervisor only, after the owner's process is reaped: a live owner would go on writing rows.
        """
        return lib.rl_ring_reclaim(self._ring, self._slots, self.num_slots, owner)

    def meta(self, slot: int) -> FragmentMeta:
        """Return what was published with the slot's fragment. Meaningful for the process that took it."""
        self._check_slot(slot)
        meta = ffi.new("int64_t[4]")
        lib.rl_ring_meta(self._slots, slot, meta)
        return FragmentMeta(meta[0], meta[1], meta[2], meta[3])

    def generation(self, slot: int) -> int:
        """Return a number that changes whenever the slot is claimed or reclaimed, so it names one fragment."""
        self._check_slot(slot)
        return lib.rl_ring_generation(self._slots, slot)

    def states(self) -> dict[str, int]:
        """Return how many slots are `free`, `writing`, `ready` and `reading`; not all of one moment."""
        return dict(zip(("free", "writing", "ready", "reading"), self._counts()[:4], strict=True))

    @property
    def dropped(self) -> int:
        """Published fragments that `claim_overwriting` threw away."""
        return self._counts()[4]

    @property
    def late(self) -> int:
        """Calls of `publish` and `release` that came after the slot had been taken away."""
        return self._counts()[5]

    @property
    def published(self) -> int:
        """Tickets handed out: fragments published so far, and at most one for each owner that died while publishing."""
        return self._counts()[6]

    def _counts(self) -> list[int]:
        counts = ffi.new("int64_t[7]")
        lib.rl_ring_counts(self._ring, self._slots, self.num_slots, counts)
        return list(counts)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.num_slots:
            raise IndexError(f"slot {slot} is outside [0, {self.num_slots})")
