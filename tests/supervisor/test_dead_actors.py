"""When the slots of a dead actor return to the ring, in a real arena without processes."""

from __future__ import annotations

import pytest

from rltrain.supervisor.dead_actors import DeadActors
from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.roles import RolePlan
from tests.shm.arenas import ROLES, layout

NAMES = ("learner", "inference", "actor-0", "actor-1")
OWNER = NAMES.index("actor-0") + 1


@pytest.fixture
def memory():
    made = RunMemory.create(layout(), {name: ROLES.index(name.split("-")[0]) for name in NAMES[:3]})
    made.rows["inference"].start(1)
    yield made
    made.arena.close()


@pytest.fixture
def dead_actors(memory):
    lanes = tuple(range(memory.arena.layout.groups_per_actor))
    plans = {"actor-0": RolePlan("actor-0", "actor", OWNER - 1, {}, needs_torch=False, lanes=lanes)}
    return DeadActors(memory, plans)


def test_slots_of_a_dead_actor_return_only_once_the_server_cannot_write_to_them(memory, dead_actors):
    slot = memory.ring.claim(OWNER, 0)
    memory.mailboxes.post(0, slot, 0, 0, None)
    memory.rows["inference"].enter("forward")
    dead_actors.disown("actor-0")
    dead_actors.reclaim()
    assert dead_actors.is_pending("actor-0")
    assert memory.ring.states()["writing"] == 1
    memory.rows["inference"].enter("wait_request")
    dead_actors.reclaim()
    assert not dead_actors.is_pending("actor-0")
    assert memory.ring.states()["writing"] == 0
    assert len(memory.mailboxes.pending().lane) == 0, "its request is withdrawn"


def test_slots_of_a_dead_actor_return_after_the_batch_that_the_server_was_in(memory, dead_actors):
    memory.ring.claim(OWNER, 0)
    memory.rows["inference"].enter("forward")
    dead_actors.disown("actor-0")
    memory.rows["inference"].add("batches")
    dead_actors.reclaim()
    assert memory.ring.states()["writing"] == 0
