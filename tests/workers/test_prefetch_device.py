"""Batches under load, on the CPU and on a device: buffers are written again only once nobody reads them any more.

Every batch is filled with a number of its own. The learner reads it late, behind other work on its stream, but gives
its buffers back at once, as it may; the copies, too, come late, behind other work on theirs.
"""

from __future__ import annotations

import threading

import pytest
import torch

from rltrain.shm.control import Control
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from rltrain.workers.prefetch import Prefetcher
from tests.devices import CUDA, DEVICES
from tests.specs import env_spec
from tests.workers.fragments import ACTOR, LEARNER, arena, counters

pytestmark = pytest.mark.timeout(300)

LANES, LENGTH = 4, 32
ALL_ALIKE = ("obs", "reward", "behaviour_logp", "action")
SLEEP_CYCLES = 100_000_000
"""Of a device's clock, 50 ms or more: longer than the thread takes to fill both host buffers."""
SIZES = {"cpu": (12, 60), "cuda": (32_768, 100)}
"""Envs in a group, so that a batch on a device has 64 MiB of observations and more; number of batches."""
MOST_UNREAD = 8
"""Batches that the host may be ahead of the learner's stream; bounds the memory of the device."""


class Load:
    """A prefetch thread with a writer at full speed.

    Args:
        device: where batches go.
        num_envs: in a group.
        num_batches: that are written.
    """

    def __init__(self, device: str, num_envs: int, num_batches: int):
        self.arena = arena(env_spec(), num_slots=2 * LANES, num_envs=num_envs, length=LENGTH)
        self.ring, self.num_batches = TrajectoryRing(self.arena), num_batches
        settings = {
            "schedule": "overlap", "num_lanes": LANES, "min_fragments": 1, "max_fragments": LANES,
            "max_policy_lag": None, "owner": LEARNER + 1,
        }  # fmt: skip
        self.prefetch = Prefetcher(
            self.ring, self.arena.layout.schema, settings, Control(self.arena), counters(self.arena, LEARNER),
            torch.device(device), 0,
        )  # fmt: skip
        self.stop = threading.Event()
        self.writer = threading.Thread(target=self._write)
        self.writer.start()

    def _write(self) -> None:
        for name in ("episode_return", "episode_length", "terminated", "truncated", "policy_version"):
            self.ring.field(name)[...] = 0
        self.ring.field("valid")[...] = True
        for number in range(self.num_batches):
            for lane in range(LANES):
                slot = None
                while slot is None and not self.stop.is_set():
                    slot = self.ring.claim(ACTOR + 1, 0.1)
                if slot is None:
                    return
                for name in ALL_ALIKE:
                    self.ring.field(name)[slot] = number
                self.ring.publish(slot, ACTOR + 1, FragmentMeta(lane, number, number, 1))

    def wrong_batches(self) -> list[int]:
        """Learn from all batches; return the numbers of those that held anything but their own number."""
        is_cuda = self.prefetch.device.type == "cuda"
        extremes = []
        for number in range(self.num_batches):
            batch = self.prefetch.next(60)
            assert batch is not None, "the next batch"
            assert batch.number == number
            parts = [batch.tensors[name] for name in ALL_ALIKE]
            if is_cuda:
                torch.cuda._sleep(2 * SLEEP_CYCLES)  # the learner's stream falls behind the copies
                self.prefetch.done(batch)
                extremes.append(_extremes(parts))
                if number % MOST_UNREAD == 0:
                    torch.cuda.current_stream().synchronize()
            else:
                extremes.append(_extremes(parts))
                self.prefetch.done(batch)
            del batch, parts  # only the allocator knows that their memory is still to be read
        found = torch.stack(extremes).cpu()
        return [i for i, values in enumerate(found) if not bool((values == i).all())]

    def close(self) -> None:
        """End both threads."""
        self.stop.set()
        self.prefetch.close()
        self.writer.join(10)
        self.arena.close()


def _extremes(parts: list[torch.Tensor]) -> torch.Tensor:
    """The least and the largest value of each part, float64, without waiting for them."""
    return torch.stack([x for part in parts for x in (part.min().double(), part.max().double())])


@pytest.fixture
def wrong_batches(monkeypatch):
    """Return what runs the load and returns the numbers of wrong batches; copies to a device come late."""
    made = []
    to_device = Prefetcher._to_device

    def late(self, *arguments):
        if self.stream is not None:
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(SLEEP_CYCLES)
        return to_device(self, *arguments)

    def run(device: str) -> list[int]:
        monkeypatch.setattr(Prefetcher, "_to_device", late)
        made.append(Load(device, *SIZES[device.split(":")[0]]))
        return made[-1].wrong_batches()

    yield run
    for one in made:
        one.close()


@pytest.mark.parametrize("device", DEVICES)
def test_batches_under_load_hold_what_was_written(wrong_batches, device):
    """A quarter of a minute on a device."""
    assert wrong_batches(device) == []


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("left_out", ["the wait for the copy", "the note that the batch is still read"])
def test_batches_under_load_are_wrong_without(wrong_batches, left_out, device, monkeypatch):
    """A quarter of a minute each; else the test above could not fail."""
    if left_out == "the wait for the copy":
        monkeypatch.setattr(Prefetcher, "done", lambda self, batch: self.free.put(batch.host))
    else:
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    assert wrong_batches(device) != []
