"""Both sides of `rltrain bench ring`: the writer, which runs in another process, and the reader, in the bench's own.

A writer stands for an actor, a reader for the learner's prefetch thread. Each makes one copy of a fragment's bytes: the
writer from memory of its own into the slot, field by field; the reader from the slot into its columns of a host batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rltrain.bench.partner import PartnerError
from rltrain.fields import ActionSpec, EnvSpec, FragmentSchema, LeafSpec
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.ring import FragmentMeta, TrajectoryRing

READER, WRITER = 1, 2
ROLES = ("learner", "actor")
NUM_SLOTS = 16
NUM_PLACES = 8
"""Fragments side by side in the reader's host batch."""
WAIT_S = 0.2
STALL_S = 20.0
"""The ring moves nothing for so long: the bench gives up."""
_LENGTH, _NUM_ENVS = 32, 8
_ACTION = ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,))


def schema_of(nbytes: int | None) -> FragmentSchema:
    """Return the schema of fragments of about `nbytes` (32 steps of 8 envs), or of the smallest there are: None."""
    if nbytes is None:
        return FragmentSchema.for_env(EnvSpec("bench", (LeafSpec("obs", "box", (1,), "float32"),), _ACTION), 2, 1)
    rows = (_LENGTH + 1) * _NUM_ENVS
    smallest = schema_of(None).fields[1:]
    others = sum(field.row_bytes(_NUM_ENVS) for field in smallest) / _NUM_ENVS
    size = max(1, round((nbytes / rows - others) / 4))
    return FragmentSchema.for_env(
        EnvSpec("bench", (LeafSpec("obs", "box", (size,), "float32"),), _ACTION), _LENGTH, _NUM_ENVS
    )


def arena_of(nbytes: int | None) -> Arena:
    """Create an arena for fragments of that size."""
    return Arena.create(ArenaLayout.plan(schema_of(nbytes), NUM_SLOTS, 1, 1, 1, 0, ROLES))


class Writer:
    """Publishes fragments.

    Args:
        arena: of `arena_of`.
    """

    def __init__(self, arena: Arena):
        self.ring = TrajectoryRing(arena)
        schema = arena.layout.schema
        self._fields = [self.ring.field(f.name) for f in schema.fields]
        self._versions = self.ring.field("policy_version")
        self._sources = [np.ones(field.shape[1:], field.dtype) for field in self._fields]

    def empty(self, count: int, wait_s: float) -> float:
        """Claim and publish `count` fragments without writing any byte; returns the seconds.

        Args:
            count: fragments.
            wait_s: sleep for so long where no slot is free; 0 looks again at once.
        """
        claim, publish = self.ring.claim, self.ring.publish
        began = time.perf_counter()
        for sequence in range(count):
            slot = claim(WRITER, wait_s)
            while slot is None:
                slot = claim(WRITER, wait_s)
            publish(slot, WRITER, FragmentMeta(0, sequence, 0, sequence))
        return time.perf_counter() - began

    def write(self, count: int) -> float:
        """Claim, write every byte of, and publish `count` fragments; returns the seconds."""
        pairs = list(zip(self._fields, self._sources, strict=True))
        began = time.perf_counter()
        for sequence in range(count):
            slot = self.ring.claim(WRITER, WAIT_S)
            while slot is None:
                slot = self.ring.claim(WRITER, WAIT_S)
            for field, source in pairs:
                np.copyto(field[slot], source)
            self._versions[slot, 0] = sequence
            self.ring.publish(slot, WRITER, FragmentMeta(0, sequence, 0, sequence))
        return time.perf_counter() - began

    def copy(self, count: int) -> float:
        """Copy the observations into the slots `count` times, in turn, without the ring; returns the seconds."""
        rows, source = self._fields[0], self._sources[0]
        began = time.perf_counter()
        for i in range(count):
            np.copyto(rows[i % NUM_SLOTS], source)
        return time.perf_counter() - began


def partner(arena: Arena, settings: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Return what carries out the orders of the bench: see `bench.partner`."""
    writer = Writer(arena)

    def answer(order: dict[str, Any]) -> dict[str, float]:
        count = int(order["count"])
        if order["do"] == "empty":
            return {"seconds": writer.empty(count, float(order["wait_s"]))}
        return {"seconds": writer.write(count) if order["do"] == "write" else writer.copy(count)}

    return answer


class Reader:
    """Takes fragments.

    Args:
        arena: of `arena_of`.
        check: raises when the other process is dead.
    """

    def __init__(self, arena: Arena, check: Callable[[], None]):
        self.ring = TrajectoryRing(arena)
        schema = arena.layout.schema
        self.obs_bytes = (schema.fragment_length + 1) * schema.fields[0].row_bytes(schema.num_envs)
        self._check = check
        self._batch = {}
        for field in schema.fields:
            width = NUM_PLACES * (schema.num_envs if field.per_env else 1)
            self._batch[field.name] = np.zeros((schema.fragment_length + 1, width, *field.shape), field.dtype)
        self._rows = self.ring.field(schema.fields[0].name)
        self._places = np.zeros((NUM_PLACES, *self._rows.shape[1:]), self._rows.dtype)
        self._middle = np.zeros_like(self._rows)
        self._num_envs = schema.num_envs

    def empty(self, count: int, wait_s: float) -> float:
        """Take and release `count` fragments, as `Writer.empty`; returns the seconds from the first one taken on."""
        ring, take, release = self.ring, self.ring.take, self.ring.release
        release(self._first(), READER)
        began = time.perf_counter()
        for _ in range(count - 1):
            slot = take(READER, wait_s)
            if slot is None:
                slot = self._first() if wait_s else _look(ring, self._check)
            release(slot, READER)
        return (time.perf_counter() - began) * count / max(1, count - 1)

    def gather(self, count: int) -> float:
        """Take, gather and release `count` fragments, as the prefetch thread does; returns the seconds.

        Raises:
            PartnerError: a fragment does not hold what was written.
        """
        versions = self._batch["policy_version"]
        began, seconds = 0.0, 0.0
        for i in range(count):
            slot = self.ring.take(READER, WAIT_S)
            if slot is None:
                slot = self._first()
            began = began or time.perf_counter()
            meta, place = self.ring.meta(slot), i % NUM_PLACES
            self.ring.gather_fragment(slot, place * self._num_envs, self._batch)
            self.ring.release(slot, READER)
            if versions[0, place] != meta.sequence:
                raise PartnerError(f"fragment {meta.sequence} holds the rows of fragment {versions[0, place]}")
        seconds = time.perf_counter() - began
        return seconds

    def copy(self, count: int) -> float:
        """Copy observations out of the slots `count` times, in turn, without the ring; returns the seconds."""
        began = time.perf_counter()
        for i in range(count):
            np.copyto(self._places[i % NUM_PLACES], self._rows[i % NUM_SLOTS])
        return time.perf_counter() - began

    def copy_twice(self, count: int) -> float:
        """Make both copies in this process, one behind the other, in memory of its own; returns the seconds."""
        source = np.ones_like(self._places[0])
        began = time.perf_counter()
        for i in range(count):
            middle = self._middle[i % NUM_SLOTS]
            np.copyto(middle, source)
            np.copyto(self._places[i % NUM_PLACES], middle)
        return time.perf_counter() - began

    def verbs(self, rounds: int) -> dict[str, float]:
        """Return what each verb takes in this process alone, in microseconds: nobody waits, nothing is contended."""
        ring, clock, times = self.ring, time.perf_counter, np.zeros(4)
        for _ in range(rounds):
            at = [clock()]
            claimed = [ring.claim(READER, 0) for _ in range(NUM_SLOTS)]
            at.append(clock())
            for slot in claimed:
                ring.publish(slot or 0, READER, FragmentMeta(0, 0, 0, 0))
            at.append(clock())
            taken = [ring.take(READER, 0) for _ in range(NUM_SLOTS)]
            at.append(clock())
            for slot in taken:
                ring.release(slot or 0, READER)
            at.append(clock())
            times += np.diff(at)
        names = ("claim", "publish", "take", "release")
        return dict(zip(names, (times * 1e6 / (rounds * NUM_SLOTS)).tolist(), strict=True))

    def _first(self) -> int:
        """Wait for a fragment, sleeping, and look whether the writer lives."""
        deadline = time.monotonic() + STALL_S
        while (slot := self.ring.take(READER, WAIT_S)) is None:
            self._check()
            if time.monotonic() > deadline:
                raise PartnerError(f"the ring stands still for {STALL_S:g} s: {self.ring.states()}")
        return slot


def _look(ring: TrajectoryRing, check: Callable[[], None]) -> int:
    """Look again and again for a fragment; now and then whether the writer lives."""
    while True:
        for _ in range(1000):
            slot = ring.take(READER, 0)
            if slot is not None:
                return slot
        check()
