"""What the store refuses: arrays whose addresses would be written beyond their ends, and items that are none."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.replay.store import ReplayStore
from tests.replay.streams import fragment_for, gathered, layout, new_batch


@pytest.fixture(params=[1, 3], ids=["plain", "stacked"])
def store(request):
    made = layout(stack=request.param)
    found = ReplayStore(made)
    found.insert(0, fragment_for(made), False)
    return found


@pytest.mark.parametrize("item", [-1, 40, 2**62, -(2**62)])
def test_gather_of_an_item_out_of_range_is_an_error_and_writes_nothing(store, item):
    batch = new_batch(store, 2)
    with pytest.raises(IndexError, match=r"\[0, 40\)"):
        store.gather(np.array([0, item]), batch)
    assert all((x == 77).all() for x in batch.values())


@pytest.mark.parametrize("name", ["obs", "next_obs", "action", "return_", "discount"])
@pytest.mark.parametrize("fault", ["short", "long", "dtype", "strides", "read-only"])
def test_gather_into_an_array_that_does_not_fit_is_an_error_and_writes_nothing(store, name, fault):
    batch = new_batch(store, 2)
    x = batch[name]
    wide = np.full((4, *x.shape[1:]), 77, x.dtype)
    batch[name] = {
        "short": x[:1], "long": wide, "dtype": x.astype(np.int16), "strides": wide[::2], "read-only": x,
    }[fault]  # fmt: skip
    if fault == "read-only":
        x.flags.writeable = False
    with pytest.raises(ValueError, match="needed is"):
        store.gather(np.zeros(2, np.int64), batch)
    assert all((x == 77).all() for x in batch.values())


def test_gather_of_more_items_than_a_known_batch_has_rows_is_an_error(store):
    """The addresses of the batch are kept, its size too."""
    batch = new_batch(store, 2)
    store.gather(np.zeros(2, np.int64), batch)
    for items in (np.zeros(3, np.int64), np.zeros((2, 1), np.int64)):
        with pytest.raises(ValueError, match="do not fit a batch of 2"):
            store.gather(items, batch)


def test_gather_into_a_view_of_a_known_batch_is_checked_anew(store):
    """The first rows of an array lie where the array lies: an address says nothing of the size."""
    batch = new_batch(store, 4)
    store.gather(np.zeros(4, np.int64), batch)
    part = {name: x[:2] for name, x in batch.items()}
    with pytest.raises(ValueError, match="do not fit a batch of 2"):
        store.gather(np.zeros(4, np.int64), part)
    store.gather(np.ones(2, np.int64), part)
    np.testing.assert_array_equal(batch["obs"][:2], gathered(store, [1, 1])["obs"])
    np.testing.assert_array_equal(batch["obs"][2:], gathered(store, [0, 0])["obs"])


def test_gather_into_many_batches_in_turn_fills_each(store):
    batches = [new_batch(store, 2) for _ in range(9)]
    for turn in range(2):
        for i, batch in enumerate(batches):
            items = [(i + turn) % 3 * 2, i % 2]
            store.gather(np.array(items), batch)
            for name, x in gathered(store, items).items():
                np.testing.assert_array_equal(batch[name], x)


def test_gather_takes_a_batch_of_the_same_arrays_in_another_dict(store):
    batch = new_batch(store, 2)
    store.gather(np.zeros(2, np.int64), batch)
    swapped = {**dict(reversed(batch.items())), "obs": batch["next_obs"], "next_obs": batch["obs"]}
    store.gather(np.zeros(2, np.int64), swapped)
    np.testing.assert_array_equal(batch["next_obs"], gathered(store, [0, 0])["obs"])


def test_gather_of_items_that_were_never_written_stays_within_the_memory(store):
    """They are not drawn; but whoever asks must not bring the process down."""
    gathered(store, list(range(store.layout.num_items)))
    if store.layout.is_stacked:
        empty = ReplayStore(store.layout)
        empty._arrays["obs"][0] = 9
        assert not gathered(empty, [1])["obs"].any(), "frames before the ring of the second env"


def test_gather_of_no_items_is_nothing(store):
    gathered(store, [])


@pytest.mark.parametrize("name", ["obs", "action", "reward", "valid"])
@pytest.mark.parametrize("fault", ["short", "narrow"])
def test_fragment_that_does_not_fit_is_an_error_and_changes_nothing(store, name, fault):
    fragment = fragment_for(store.layout, seed=1)
    fragment[name] = fragment[name][:-1] if fault == "short" else fragment[name][:, :1]
    before = {name: x.copy() for name, x in store.state_dict().items()}
    with pytest.raises(ValueError, match=f"{name}.*needed is"):
        store.insert(0, fragment, True)
    for name, x in store.state_dict().items():
        np.testing.assert_array_equal(x, before[name])


def test_fragment_of_another_dtype_is_an_error(store):
    fragment = fragment_for(store.layout)
    fragment["obs"] = fragment["obs"].astype(np.float64)
    with pytest.raises(ValueError, match="needed is float32"):
        store.insert(0, fragment, True)


def test_fragment_may_lie_in_memory_in_any_order(store):
    fragment = fragment_for(store.layout, seed=1)
    turned = {name: np.asfortranarray(x) for name, x in fragment.items()}
    other = ReplayStore(store.layout)
    entered, _ = other.insert(0, turned, False)
    store = ReplayStore(store.layout)
    store.insert(0, fragment, False)
    for name, x in gathered(store, entered.tolist()).items():
        np.testing.assert_array_equal(gathered(other, entered.tolist())[name], x)
