"""The sampler with its real thread: the same batches with and without it, and nothing lost on the way."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from rltrain.workers.sampler import Sampler
from tests.replay.streams import Stream, layout
from tests.telemetry.samples import row

BATCH = 16


def start(prefetch: bool, seed: int = 0) -> tuple[Sampler, Stream]:
    """A sampler over a store that holds ten fragments."""
    made = layout(n_step=2, num_envs=3, rows=40)
    priorities = Priorities(made.num_items, 0.6, 1e-6, seed)
    sampler = Sampler(ReplayStore(made), priorities, BATCH, torch.device("cpu"), row("learner"), prefetch)
    stream = Stream(seed, made)
    for _ in range(10):
        sampler.insert(*stream.next())
    sampler.flush()
    return sampler, stream


def learn(sampler: Sampler, stream: Stream, num_updates: int) -> list[dict[str, np.ndarray]]:
    """Update as the learner does, one batch ahead, inserting between; return all batches."""
    batches = []
    for _ in range(3):
        sampler.insert(*stream.next())
        sampler.flush()
        sampler.draw(0.5)
        for i in range(num_updates):
            batch = sampler.take()
            if i + 1 < num_updates:
                sampler.draw(0.5)
            batches.append({"items": batch.items.copy()} | {k: x.numpy().copy() for k, x in batch.tensors.items()})
            sampler.learned(batch, batch.tensors["return_"].abs() + i)
        sampler.flush()
    return batches


def test_prefetch_draws_what_would_be_drawn_without():
    """Priorities take effect at the same update, whichever thread is faster."""
    results = []
    for prefetch in (True, False, True):
        sampler, stream = start(prefetch)
        results.append(learn(sampler, stream, 20))
        sampler.close()
    assert len(results[0]) == 60
    for other in results[1:]:
        for expected, found in zip(results[0], other, strict=True):
            for name, x in expected.items():
                np.testing.assert_array_equal(x, found[name], err_msg=name)


def test_batch_is_what_the_store_holds_of_its_items():
    sampler, stream = start(prefetch=True)
    for batch in learn(sampler, stream, 5)[-5:]:
        for i, item in enumerate(batch["items"]):
            expected = stream.lists.transition(int(item))
            np.testing.assert_array_equal(batch["obs"][i], expected["obs"])
            np.testing.assert_array_equal(batch["next_obs"][i], expected["next_obs"])
    sampler.close()


def test_batch_in_use_is_not_written_while_the_next_one_is_drawn():
    sampler, _ = start(prefetch=True)
    sampler.draw(0.5)
    batch = sampler.take()
    before = {name: x.clone() for name, x in batch.tensors.items()}
    sampler.draw(0.5)
    following = sampler.take()
    assert all(torch.equal(x, before[name]) for name, x in batch.tensors.items())
    assert following.tensors["obs"].data_ptr() != batch.tensors["obs"].data_ptr()
    sampler.close()


def test_errors_become_priorities_and_without_them_priorities_stay():
    sampler, _ = start(prefetch=True)
    masses = sampler.priorities.tree.masses.copy()
    sampler.draw(0.5)
    sampler.learned(sampler.take(), None)
    sampler.flush()
    np.testing.assert_array_equal(sampler.priorities.tree.masses, masses)
    sampler.draw(0.5)
    batch = sampler.take()
    sampler.learned(batch, torch.full((BATCH,), 8.0))
    sampler.flush()
    np.testing.assert_allclose(sampler.priorities.tree.masses[batch.items], 8.0**0.6, rtol=1e-5)
    sampler.close()


@pytest.mark.parametrize("prefetch", [True, False])
def test_failure_of_an_order_reaches_the_learner(prefetch):
    made = layout()
    priorities = Priorities(made.num_items, 0.6, 1e-6, 0)
    sampler = Sampler(ReplayStore(made), priorities, BATCH, torch.device("cpu"), row("learner"), prefetch)

    def draw_from_nothing() -> None:
        sampler.draw(0.5)
        sampler.take()

    with pytest.raises(ValueError, match="nothing can be drawn"):
        draw_from_nothing()
    sampler.close()


def test_close_ends_the_thread():
    sampler, _ = start(prefetch=True)
    assert [thread.name for thread in threading.enumerate()].count("sampler") == 1
    sampler.close()
    assert "sampler" not in [thread.name for thread in threading.enumerate()]
