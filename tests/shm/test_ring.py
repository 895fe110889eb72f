"""The ring in one process: against an oracle, and the rules of holding a slot."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field

import pytest

from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from tests.shm.arenas import arena

ACTOR, OTHER, LEARNER = 3, 4, 1
META = FragmentMeta(lane=2, fragment_index=7, policy_version=5, sequence=11)


@pytest.fixture
def shared():
    created = arena(num_slots=4)
    yield created
    created.close()


@pytest.fixture
def ring(shared):
    return TrajectoryRing(shared)


def publish_one(ring, sequence=1):
    slot = ring.claim(ACTOR, 0)
    assert ring.publish(slot, ACTOR, FragmentMeta(0, 0, 0, sequence))
    return slot


@dataclass
class Oracle:
    """What the ring does, in a few lines of Python."""

    owners: list = field(default_factory=lambda: [("free", None)] * 4)
    ready: list = field(default_factory=list)
    dropped: int = 0

    def claim(self, owner, overwriting):
        slot = next((i for i, (state, _) in enumerate(self.owners) if state == "free"), None)
        if slot is None and overwriting and self.ready:
            slot = self.ready.pop(0)
            self.dropped += 1
        if slot is not None:
            self.owners[slot] = ("writing", owner)
        return slot

    def publish(self, slot, owner):
        if self.owners[slot] != ("writing", owner):
            return False
        self.owners[slot] = ("ready", None)
        self.ready.append(slot)
        return True

    def take(self, owner):
        if not self.ready:
            return None
        slot = self.ready.pop(0)
        self.owners[slot] = ("reading", owner)
        return slot

    def release(self, slot, owner):
        if self.owners[slot] != ("reading", owner):
            return False
        self.owners[slot] = ("free", None)
        return True


@pytest.mark.parametrize("seed", range(5))
def test_ring_random_operations_equal_oracle(ring, seed):
    rng, oracle = random.Random(seed), Oracle()
    for sequence in range(2000):
        owner, slot = rng.choice((ACTOR, OTHER)), rng.randrange(4)
        operation = rng.choice(("claim", "claim", "overwrite", "publish", "publish", "take", "release"))
        if operation == "claim":
            assert ring.claim(owner, 0) == oracle.claim(owner, False)
        elif operation == "overwrite":
            assert ring.claim_overwriting(owner) == oracle.claim(owner, True)
        elif operation == "publish":
            meta = FragmentMeta(owner, sequence, seed, sequence)
            was_published = ring.publish(slot, owner, meta)
            assert was_published == oracle.publish(slot, owner)
            assert not was_published or ring.meta(slot) == meta
        elif operation == "take":
            assert ring.take(owner, 0) == oracle.take(owner)
        else:
            assert ring.release(slot, owner) == oracle.release(slot, owner)
        states = [state for state, _ in oracle.owners]
        assert ring.states() == {name: states.count(name) for name in ("free", "writing", "ready", "reading")}
    assert ring.dropped == oracle.dropped


def test_meta_after_take_is_what_was_published(ring):
    ring.publish(ring.claim(ACTOR, 0), ACTOR, META)
    assert ring.meta(ring.take(LEARNER, 0)) == META


def test_reclaim_dead_writer_frees_its_slots_only(ring):
    ring.claim(ACTOR, 0), ring.claim(OTHER, 0), ring.claim(ACTOR, 0)
    assert ring.reclaim(ACTOR) == 2
    assert ring.states() == {"free": 3, "writing": 1, "ready": 0, "reading": 0}


def test_reclaim_dead_reader_makes_fragment_the_oldest_again(ring):
    first, _ = publish_one(ring, 1), publish_one(ring, 2)
    assert ring.take(LEARNER, 0) == first
    assert ring.reclaim(LEARNER) == 1
    assert ring.take(LEARNER, 0) == first
    assert ring.meta(first).sequence == 1


def test_publish_after_reclaim_and_new_claim_is_late_and_leaves_the_other_alone(shared, ring):
    slot = ring.claim(ACTOR, 0)
    new_life = TrajectoryRing(shared)
    ring.reclaim(ACTOR)
    assert new_life.claim(ACTOR, 0) == slot
    assert not ring.publish(slot, ACTOR, META)
    assert ring.late == 1
    assert new_life.publish(slot, ACTOR, FragmentMeta(9, 9, 9, 9))
    assert new_life.meta(slot) == FragmentMeta(9, 9, 9, 9)


def test_release_after_reclaim_is_late_and_keeps_the_fragment(ring):
    slot = publish_one(ring)
    ring.take(LEARNER, 0)
    ring.reclaim(LEARNER)
    assert not ring.release(slot, LEARNER)
    assert ring.late == 1
    assert ring.states()["ready"] == 1


def test_release_after_reclaim_and_new_take_is_late_and_leaves_the_other_alone(shared, ring):
    slot = publish_one(ring)
    ring.take(LEARNER, 0)
    ring.reclaim(LEARNER)
    new_life = TrajectoryRing(shared)
    assert new_life.take(LEARNER, 0) == slot
    assert not ring.release(slot, LEARNER)
    assert new_life.release(slot, LEARNER)


def test_publish_slot_of_another_owner_is_refused(ring):
    slot = ring.claim(ACTOR, 0)
    assert not ring.publish(slot, OTHER, META)
    assert ring.states()["writing"] == 1


def test_generation_new_fragment_in_slot_changes(ring):
    slot = publish_one(ring)
    before = ring.generation(slot)
    ring.release(ring.take(LEARNER, 0), LEARNER)
    assert ring.generation(slot) == before
    ring.claim(ACTOR, 0)
    assert ring.generation(slot) != before


def test_claim_overwriting_full_ring_drops_the_oldest(ring):
    slots = [publish_one(ring, i) for i in range(4)]
    assert ring.claim_overwriting(ACTOR) == slots[0]
    assert ring.dropped == 1
    assert ring.take(LEARNER, 0) == slots[1]


def test_claim_overwriting_all_slots_held_returns_none(ring):
    while ring.claim(ACTOR, 0) is not None:
        pass
    assert ring.claim_overwriting(OTHER) is None


def test_claim_full_ring_returns_none_after_its_time(ring):
    while ring.claim(ACTOR, 0) is not None:
        pass
    started = time.monotonic()
    assert ring.claim(ACTOR, 0.05) is None
    assert 0.05 <= time.monotonic() - started < 5


@pytest.mark.parametrize("wake", ["release", "reclaim"])
def test_claim_full_ring_wakes_when_a_slot_is_freed(ring, wake):
    slots = [publish_one(ring, i) for i in range(4)]
    for _ in slots:
        ring.take(LEARNER, 0)
    if wake == "reclaim":
        for slot in slots:
            ring.release(slot, LEARNER)
        assert [ring.claim(OTHER, 0) for _ in slots] == slots
    found = []
    waiter = threading.Thread(target=lambda: found.append(ring.claim(ACTOR, 30)))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive(), "the claim did not block"
    if wake == "release":
        ring.release(slots[2], LEARNER)
    else:
        ring.reclaim(OTHER)
    waiter.join(10)
    assert found == [slots[2] if wake == "release" else slots[0]]


def test_take_empty_ring_wakes_when_a_fragment_is_published(ring):
    found = []
    waiter = threading.Thread(target=lambda: found.append(ring.take(LEARNER, 30)))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive(), "the take did not block"
    slot = publish_one(ring)
    waiter.join(10)
    assert found == [slot]


def test_waits_many_hand_overs_lose_no_wakeup():
    """Without timeouts to hide behind: 20 s of waiting would be a lost wake-up, and a failure."""
    shared = arena(num_slots=1)
    writer, reader = TrajectoryRing(shared), TrajectoryRing(shared)
    rounds = 3000

    def write():
        for i in range(rounds):
            slot = writer.claim(ACTOR, 20)
            assert slot is not None
            writer.publish(slot, ACTOR, FragmentMeta(0, 0, 0, i))

    thread = threading.Thread(target=write)
    thread.start()
    started = time.monotonic()
    for i in range(rounds):
        slot = reader.take(LEARNER, 20)
        assert reader.meta(slot).sequence == i
        reader.release(slot, LEARNER)
    thread.join(20)
    assert time.monotonic() - started < 15
    shared.close()


def test_take_signal_arrives_returns_at_once_and_runs_handler(ring):
    handled = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: handled.append(True))
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    started = time.monotonic()
    try:
        sender.start()
        assert ring.take(LEARNER, 20) is None
        assert handled == [True]
        assert time.monotonic() - started < 10
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("call", ["publish", "release", "meta", "generation"])
def test_slot_out_of_range_is_refused(ring, call):
    arguments = {"publish": (4, ACTOR, META), "release": (-1, LEARNER), "meta": (4,), "generation": (4,)}[call]
    with pytest.raises(IndexError, match="slot"):
        getattr(ring, call)(*arguments)
