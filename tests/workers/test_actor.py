"""An actor with real envs and a real ring: what it stores, where it waits, and what the inference server stamps."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest
import torch

from rltrain.algos.flat_parameters import FlatParameters
from rltrain.config.schema import EnvSection, ModelSection
from rltrain.envs.make import describe, make_group
from rltrain.errors import ShutdownRequested
from rltrain.fields import ACTION, FragmentSchema
from rltrain.inference.local_backend import LocalPolicy
from rltrain.inference.torch_backend import TorchBackend
from rltrain.models import build_model
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.weights import WeightBoard
from rltrain.workers.actor import Actor, behaviour_version
from rltrain.workers.inference import InferenceServer
from tests.runs import until
from tests.toy_models import LOGP_PER_VERSION
from tests.workers.fragments import ACTOR, LEARNER, ROLES, counters

pytestmark = pytest.mark.timeout(60)

INFERENCE = 1


class Answers:
    """A policy that answers every request at once: action 1, log-probability -0.5, version 0."""

    def __init__(self, ring: TrajectoryRing):
        self.ring = ring
        self.requests: list[tuple] = []

    def post(self, lane, slot, step, fragment_index, required_version) -> None:
        """Answer into the slot."""
        self.requests.append((lane, slot, step, fragment_index, required_version))
        for name, value in ((ACTION, 1), ("behaviour_logp", -0.5), ("policy_version", 0)):
            self.ring.field(name)[slot, step] = value

    def wait_reply(self, lane, timeout_s) -> bool:
        """Say that the answer is there."""
        return True


class Rig:
    """An actor with two groups, and a learner that takes what it publishes."""

    def __init__(
        self, env: dict, num_envs: int, length: int, schedule="async", num_slots=6, model=None, when_full="block"
    ):
        section = EnvSection(**env).model_dump(mode="json")
        self.groups = [make_group(section, num_envs, 7, i * num_envs) for i in range(2)]
        self.spec = describe(section, self.groups[0])
        schema = FragmentSchema.for_env(self.spec, length, num_envs)
        self.model = build_model(self.spec, model, True) if model else None
        self.flat = FlatParameters(self.model) if model else None
        weight_bytes = self.flat.weight_bytes if model else 64
        self.arena = Arena.create(ArenaLayout.plan(schema, num_slots, 1, 2, weight_bytes, 0, ROLES[:3]))
        self.ring, self.control, self.board = TrajectoryRing(self.arena), Control(self.arena), WeightBoard(self.arena)
        self.counters = counters(self.arena, ACTOR)
        settings = {"index": 0, "groups": 2, "schedule": schedule, "when_full": when_full, "counter_row": ACTOR}
        self.policy = Answers(self.ring)
        self.actor = Actor(settings, self.arena, self.groups, self.policy, self.counters)
        self.threads: list[threading.Thread] = []

    def go(self, run) -> None:
        """Run a loop in a thread until the stop word is set."""

        def body() -> None:
            try:
                run()
            except ShutdownRequested:
                pass

        self.threads.append(threading.Thread(target=body))
        self.threads[-1].start()

    def start_actor(self) -> None:
        """Reset the envs and step in a thread."""
        self.actor.start(is_restart=False, resumed_fragment=None)
        self.go(self.actor.run)

    def take(self):
        """Take a fragment: its meta and a copy of every field."""
        slot = until(lambda: self._take(), "a fragment", limit_s=20) - 1
        found = {f.name: self.ring.field(f.name)[slot].copy() for f in self.arena.layout.schema.fields}
        meta = self.ring.meta(slot)
        self.ring.release(slot, LEARNER + 1)
        return meta, found

    def _take(self) -> int | None:
        slot = self.ring.take(LEARNER + 1, 0.05)
        return None if slot is None else slot + 1

    def close(self) -> None:
        """Stop the threads."""
        self.control.stop = True
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        for group in self.groups:
            group.close()
        self.arena.close()


@pytest.fixture
def rig():
    """Build a rig; closed at the end."""
    made = []

    def make(*arguments, **options) -> Rig:
        made.append(Rig(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_actor_stores_each_transition_once_and_marks_reset_rows(rig):
    """An episode of three steps, cut off by truncation: row 3 is the reset, fragments go on where the last ended."""
    side = rig({"id": "tests.toy_envs:Reuse", "kwargs": {"n": 3, "end": "trunc"}}, num_envs=2, length=6)
    side.start_actor()
    fragments = {}
    while len(fragments) < 6:
        meta, found = side.take()
        fragments[meta.lane, meta.fragment_index] = found
    for lane in range(2):
        parts = [fragments[key] for key in sorted(fragments) if key[0] == lane]
        rows = {name: np.concatenate([p[name][:6] for p in parts]) for name in parts[0]}
        assert np.array_equal(rows["obs"][:12, :, 0].T, [[0, 1, 2, 3] * 3] * 2)
        assert np.array_equal(rows["valid"][:12].T, [[True, True, True, False] * 3] * 2)
        assert np.array_equal(rows["truncated"][:12].T, [[False, False, True, False] * 3] * 2)
        assert not rows["terminated"].any()
        assert np.array_equal(rows["reward"][:12].T, [[1, 1, 1, 0] * 3] * 2)
        assert (rows["episode_return"][rows["truncated"]] == 3).all()
        assert (rows["episode_length"][rows["truncated"]] == 3).all()
        for before, after in itertools.pairwise(parts):
            assert np.array_equal(before["obs"][6], after["obs"][0])
    assert side.counters.get("env_steps") >= 6 * 2 * 4


def test_actor_resets_each_env_once_an_episode_and_seeds_the_first_reset_only(rig):
    side = rig({"id": "tests.toy_envs:Spy", "kwargs": {"n": 5, "action": "discrete"}}, num_envs=2, length=6)
    side.start_actor()
    for _ in range(20):
        side.take()
    side.control.stop = True
    side.threads[0].join(20)
    seeds = set()
    for group in side.groups:
        for env, number in zip(group._envs, group._episodes.numbers, strict=True):
            spy = env.unwrapped
            assert len(spy.seeds) == number >= 10
            assert spy.seeds[1:] == [None] * (number - 1)
            assert spy.num_renders == 0
            assert set(spy.actions) == {0}, "stored 1, counted from the start -1"
            seeds.add(spy.seeds[0])
    assert len(seeds) == 4
    assert None not in seeds


def test_actor_asks_for_the_version_of_its_schedule(rig):
    assert [behaviour_version("sync", k) for k in range(3)] == [0, 1, 2]
    assert [behaviour_version("overlap", k) for k in range(4)] == [0, 0, 1, 2]
    assert behaviour_version("async", 5) is None
    side = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=4, schedule="overlap")
    side.start_actor()
    until(lambda: side.counters.state == "wait_weights", "it waits for version 0")
    assert not side.policy.requests
    weights = np.zeros(64, np.uint8)
    side.board.publish(0, weights)
    taken = [side.take()[0] for _ in range(4)]
    assert sorted((meta.lane, meta.fragment_index) for meta in taken) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    until(lambda: side.counters.state == "wait_weights", "fragment 2 needs version 1")
    assert {version for *_, version in side.policy.requests} == {0}
    side.board.publish(1, weights)
    assert {side.take()[0].fragment_index for _ in range(2)} == {2}
    assert {version for *_, fragment, version in side.policy.requests if fragment == 2} == {1}


def test_actor_waits_for_a_slot_or_overwrites_the_oldest(rig):
    blocked = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=4, num_slots=4)
    blocked.start_actor()
    until(lambda: blocked.counters.state == "wait_slot" and blocked.ring.states()["ready"] == 4, "a full ring")
    assert [blocked.take()[0].fragment_index for _ in range(4)] == [0, 0, 1, 1]
    assert blocked.ring.dropped == 0
    free = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=4, num_slots=4, when_full="overwrite_oldest")
    free.start_actor()
    until(lambda: free.ring.dropped > 20, "overwritten fragments")
    assert free.take()[0].fragment_index > 5


def test_actor_that_starts_again_goes_on_with_the_next_fragment(rig):
    side = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=4)
    for lane in range(2):
        side.actor.mailboxes.set_progress(lane, 7)
    side.start_actor()
    assert {side.take()[0].fragment_index for _ in range(2)} == {7}


def test_times_of_an_actor_with_a_policy_of_its_own_add_up_to_the_clock(rig):
    """Two objects for its row had each added up all time: half of it was `forward`, whatever it did."""
    model = ModelSection().model_dump(mode="json")
    side = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=8, model=model)
    policy = {"model": model, "normalize_obs": True, "seed": 0, "precision": "float32"}
    side.actor.policy = LocalPolicy(side.arena, side.spec, policy, side.counters)
    side.board.publish(0, side.flat.publish_view())
    side.start_actor()
    began, before = time.monotonic_ns(), side.counters.state_ns()
    for _ in range(300):
        side.take()
    after, ended = side.counters.state_ns(), time.monotonic_ns()
    spent = {state: after[state] - before[state] for state in after}
    assert sum(spent.values()) == pytest.approx(ended - began, rel=0.05)
    assert spent["env_step"] > 0 < spent["forward"]


def test_rows_carry_the_version_whose_weights_chose_them_while_weights_change(rig):
    """The net says its version in each log-probability; new versions come as fast as they can be written."""
    model = ModelSection(kind="tests.toy_models:VersionNet").model_dump(mode="json")
    side = rig({"id": "tests.toy_envs:Count"}, num_envs=2, length=8, model=model)
    row = counters(side.arena, INFERENCE)
    backend = TorchBackend(side.spec, model, True, 0, side.board, 4)
    batcher = {"max_batch_size": 4, "preferred_batch_sizes": [], "max_queue_delay_us": 0, "adaptive": False}
    server = InferenceServer({"counter_row": INFERENCE, "batcher": batcher}, side.arena, backend)
    side.actor.policy = side.actor.mailboxes
    published = -1

    def publish() -> None:
        nonlocal published
        while not side.control.stop:
            side.model.version.fill_(published + 1)
            side.board.publish(published + 1, side.flat.publish_view())
            published += 1

    side.go(publish)
    until(lambda: published >= 0, "the first weights")
    side.go(server.run)
    side.start_actor()
    newest = {0: 0, 1: 0}
    for _ in range(60):
        meta, found = side.take()
        versions = found["policy_version"][:8]
        assert torch.equal(
            torch.from_numpy(found["behaviour_logp"][:8]),
            (LOGP_PER_VERSION * torch.from_numpy(versions).float())[:, None].expand(8, 2),
        )
        assert (np.diff(versions) >= 0).all()
        assert meta.policy_version == versions[0] >= newest[meta.lane], "a lane's versions never go back"
        newest[meta.lane] = versions[-1]
        assert versions[-1] <= published + 1
    assert min(newest.values()) > 50, "new weights are used"
    assert row.get("batches") > 0
