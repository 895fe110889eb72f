"""The prefetch thread: which fragments make a batch, in which order, and which are dropped."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrain.shm.control import Control
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from rltrain.workers.prefetch import Prefetcher
from tests.runs import until
from tests.workers.fragments import LEARNER, N, T, arena, columns, content, counters, publish

pytestmark = pytest.mark.timeout(60)


class Learner:
    """What the learner sees of the pipeline."""

    def __init__(self, schedule: str, first_batch: int = 0, minimum: int = 2, maximum: int = 4, max_policy_lag=3):
        self.arena = arena(num_slots=16)
        self.ring, self.counters = TrajectoryRing(self.arena), counters(self.arena, LEARNER)
        settings = {
            "schedule": schedule, "num_lanes": 4, "min_fragments": minimum, "max_fragments": maximum,
            "max_policy_lag": max_policy_lag, "owner": LEARNER + 1,
        }  # fmt: skip
        self.prefetch = Prefetcher(
            self.ring, self.arena.layout.schema, settings, Control(self.arena), self.counters, torch.device("cpu"),
            first_batch,
        )  # fmt: skip

    def publish(self, lane: int, fragment_index: int, version: int | None = None) -> None:
        """Publish a fragment."""
        publish(self.ring, lane, fragment_index, fragment_index if version is None else version)

    def dropped(self) -> int:
        """Return how many fragments were dropped."""
        return int(self.counters.get("dropped_env_steps")) // (T * N)


@pytest.fixture
def learner():
    """Build a learner's side; its thread is stopped at the end."""
    made = []

    def make(*arguments, **options) -> Learner:
        made.append(Learner(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.prefetch.close()
        one.arena.close()


def test_lockstep_batch_holds_one_fragment_of_each_lane_in_lane_order(learner):
    side = learner("overlap")
    for lane in (2, 0, 3):
        side.publish(lane, 0)
    assert side.prefetch.next(0.05) is None, "lane 1 is missing"
    side.publish(1, 0)
    batch = side.prefetch.next(10)
    assert columns(batch).tolist() == [content(lane, 0) for lane in range(4)]
    assert batch.lanes.tolist() == [0, 1, 2, 3]
    assert [meta.lane for meta in batch.metas] == [0, 1, 2, 3]
    assert batch.number == 0
    assert batch.num_env_steps == 4 * T * N


def test_lockstep_fragments_of_two_batches_are_kept_apart(learner):
    side = learner("overlap")
    for lane, fragment in ((0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (3, 0), (3, 1), (2, 1)):
        side.publish(lane, fragment)
    for number in range(2):
        batch = side.prefetch.next(10)
        assert batch.number == number
        assert columns(batch).tolist() == [content(lane, number) for lane in range(4)]
        side.prefetch.done(batch)


def test_lockstep_fragment_collected_twice_is_dropped(learner):
    side = learner("sync", first_batch=5)
    side.publish(0, 4)
    for lane in (1, 1, 0, 2, 3):
        side.publish(lane, 5)
    batch = side.prefetch.next(10)
    assert columns(batch).tolist() == [content(lane, 5) for lane in range(4)]
    assert side.dropped() == 2, "one of an earlier batch, one of a lane that was there"
    assert side.counters.get("dropped_env_steps") == 2 * T * N


def test_batch_is_not_overwritten_before_it_is_done(learner):
    side = learner("overlap")
    for fragment in range(4):
        for lane in range(4):
            side.publish(lane, fragment)
    first, second = side.prefetch.next(10), side.prefetch.next(10)
    assert side.prefetch.next(0.05) is None, "both buffers are with the learner"
    assert columns(first).tolist() == [content(lane, 0) for lane in range(4)]
    assert columns(second).tolist() == [content(lane, 1) for lane in range(4)]
    side.prefetch.done(first)
    assert columns(side.prefetch.next(10)).tolist() == [content(lane, 2) for lane in range(4)]
    assert columns(second).tolist() == [content(lane, 1) for lane in range(4)]


def test_async_batch_takes_what_is_there_between_its_limits(learner):
    side = learner("async", minimum=2, maximum=3)
    side.publish(0, 0, version=0)
    assert side.prefetch.next(0.05) is None
    side.publish(0, 1, version=0)
    batch = side.prefetch.next(10)
    assert columns(batch).tolist() == [content(0, 0), content(0, 1)]
    assert batch.tensors["reward"].shape == (T + 1, 2 * N)


def test_async_fragment_older_than_the_limit_is_dropped_and_counted(learner):
    side = learner("async", first_batch=10, max_policy_lag=3)
    for lane, version in ((0, 6), (1, 7), (2, 5), (3, 10)):
        side.publish(lane, lane, version=version)
    batch = side.prefetch.next(10)
    assert batch.lanes.tolist() == [1, 3]
    assert [10 - meta.policy_version for meta in batch.metas] == [3, 0]
    assert side.dropped() == 2
    assert side.counters.get("dropped_env_steps") == 2 * T * N


def test_batch_counts_valid_rows_and_ended_episodes_only(learner):
    side = learner("async", minimum=1, maximum=1)
    slot = side.ring.claim(3, 1)
    for name in ("obs", "reward", "behaviour_logp", "action", "policy_version"):
        side.ring.field(name)[slot] = 0
    side.ring.field("valid")[slot] = True
    side.ring.field("valid")[slot, 2, 1] = False
    side.ring.field("terminated")[slot] = side.ring.field("truncated")[slot] = False
    side.ring.field("terminated")[slot, 1, 1] = True
    side.ring.field("truncated")[slot, 3, 0] = True
    side.ring.field("terminated")[slot, T] = True  # the row after the last step says nothing
    side.ring.field("episode_return")[slot] = np.arange((T + 1) * N).reshape(T + 1, N)
    side.ring.field("episode_length")[slot] = 7
    side.ring.publish(slot, 3, FragmentMeta(0, 0, 0, 1))
    batch = side.prefetch.next(10)
    assert batch.num_env_steps == T * N - 1
    assert batch.episode_returns.tolist() == [1 * N + 1, 3 * N + 0]
    assert batch.episode_lengths.tolist() == [7, 7]


def test_close_ends_the_thread_while_it_waits(learner):
    side = learner("overlap")
    side.prefetch.close()
    assert not side.prefetch.thread.is_alive()


def test_error_of_the_thread_reaches_the_learner(learner):
    side = learner("overlap")
    side.prefetch.owner = None
    for lane in range(4):
        side.publish(lane, 0)
    with pytest.raises(TypeError):
        until(lambda: side.prefetch.next(1), "the error")
