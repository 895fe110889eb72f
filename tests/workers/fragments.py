"""A small arena with fragments of known content, for tests of actors and of the prefetch thread."""

from __future__ import annotations

import numpy as np

from rltrain.fields import FragmentSchema
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.counters import CounterBoard
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from tests.specs import env_spec

ROLES = ("learner", "inference", "actor", "actor")
LEARNER, ACTOR = 0, 2
T, N = 4, 3


def arena(spec=None, num_slots: int = 8, num_actors: int = 2, num_envs: int = N, length: int = T) -> Arena:
    """Create an arena of 2 actors with 2 groups each."""
    schema = FragmentSchema.for_env(spec or env_spec(), length, num_envs)
    layout = ArenaLayout.plan(schema, num_slots, num_actors, 2, 64, 0, ROLES)
    return Arena.create(layout)


def counters(shared: Arena, row: int):
    """Return a started counter row."""
    found = CounterBoard(shared).row(row)
    found.start(1)
    return found


def publish(ring: TrajectoryRing, lane: int, fragment_index: int, version: int) -> None:
    """Publish a fragment whose rewards, logps and lengths all say lane and fragment."""
    slot = ring.claim(ACTOR + 1, 1)
    assert slot is not None, "a free slot"
    number = content(lane, fragment_index)
    for name in ("obs", "reward", "behaviour_logp", "episode_return", "action"):
        ring.field(name)[slot] = number
    ring.field("episode_length")[slot] = number
    ring.field("valid")[slot] = True
    ring.field("terminated")[slot] = False
    ring.field("truncated")[slot] = False
    ring.field("policy_version")[slot] = version
    ring.publish(slot, ACTOR + 1, FragmentMeta(lane, fragment_index, version, 1))


def content(lane: int, fragment_index: int) -> int:
    """Return the number in every row of a fragment."""
    return 100 * fragment_index + lane


def columns(batch) -> np.ndarray:
    """Return the number in each block of N columns of a batch; AssertionError if a block holds several."""
    blocks = batch.tensors["reward"].numpy().reshape(T + 1, -1, N)
    numbers = blocks[0, :, 0]
    assert (blocks == numbers[None, :, None]).all(), "mixed contents"
    return numbers
