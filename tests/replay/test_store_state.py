"""What a checkpoint keeps of a store (case C07), and which states another one refuses."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from rltrain.replay.store import ReplayStore
from tests.replay.streams import Stream, fragment_for, gathered, layout


def filled(stack: int = 1, num_fragments: int = 3, **more) -> tuple[ReplayStore, Stream]:
    """A store that got some fragments, and where the next ones come from."""
    made = layout(stack=stack, n_step=2, lanes=2, **more)
    store, stream = ReplayStore(made), Stream(num_fragments, made)
    for _ in range(num_fragments):
        store.insert(*stream.next())
    return store, stream


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("num_fragments", [0, 1, 3, 30])
@pytest.mark.parametrize("in_file", [False, True])
def test_state_goes_on_in_another_store_as_in_the_first(stack, num_fragments, in_file, tmp_path):
    store, stream = filled(stack, num_fragments)
    other = ReplayStore(store.layout, tmp_path / "replay.bin" if in_file else None)
    other.insert(0, fragment_for(store.layout), False)  # forgotten with the state
    other.load_state_dict({name: x.copy() for name, x in store.state_dict().items()})
    assert other.size == store.size
    assert store.state_dict().keys() == other.state_dict().keys()
    for name, x in store.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], x, name)
    for _ in range(12):
        fragment = stream.next()
        results = store.insert(*fragment), other.insert(*fragment)
        for first, second in zip(*results, strict=True):
            np.testing.assert_array_equal(first, second)
        items = sorted(stream.lists.drawable())
        for name, x in gathered(store, items).items():
            np.testing.assert_array_equal(gathered(other, items)[name], x, name)


@pytest.mark.parametrize("stack", [1, 3])
def test_state_is_no_more_than_what_was_written_and_no_copy_of_it(stack):
    store, _ = filled(stack, 3, rows=1000)
    state = store.state_dict()
    assert sum(x.nbytes for x in state.values()) < 0.05 * store.layout.num_bytes
    for name in ("obs", "action", "reward", "flags"):
        assert np.shares_memory(state[name], store._arrays[name])


OTHERS = {
    "rows": ({"capacity": 84}, "replay.capacity"), "envs": ({"num_envs": 1}, "actors.envs_per_group"),
    "lanes": ({"num_lanes": 1}, "env groups"), "n_step": ({"n_step": 3}, "replay.n_step"),
}  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_state_of_another_layout_is_refused(other):
    """Its rows would be others, or windows that are not whole could be drawn."""
    change, name = OTHERS[other]
    store, _ = filled()
    second = ReplayStore(dataclasses.replace(store.layout, **change))
    with pytest.raises(ValueError, match=re.escape(name)):
        second.load_state_dict(store.state_dict())


def test_state_may_go_on_with_another_discount_or_fragment_length():
    store, stream = filled()
    second = ReplayStore(dataclasses.replace(store.layout, discount=0.5, fragment_length=3))
    second.load_state_dict(store.state_dict())
    items = sorted(stream.lists.drawable())
    np.testing.assert_array_equal(gathered(second, items)["obs"], gathered(store, items)["obs"])


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("fault", ["missing", "dtype", "shape", "axes", "rows"])
def test_damaged_state_is_refused_and_changes_nothing(stack, fault):
    store, _ = filled(stack)
    for name in set(store.state_dict()) - {"layout"}:
        state = {name: x.copy() for name, x in store.state_dict().items()}
        x = state[name]
        if fault == "rows" and x.ndim < 2:
            continue
        if fault == "missing":
            del state[name]
        else:
            state[name] = {
                "dtype": x.astype(np.uint16), "shape": np.concatenate([x, x]), "axes": x[None],
                "rows": np.repeat(x, 99, 1) if x.ndim > 1 else x,
            }[fault]  # fmt: skip
        second = ReplayStore(store.layout)
        with pytest.raises(ValueError, match=f"^{re.escape(name)} is .*must fit"):
            second.load_state_dict(state)
        assert second.size == 0
        assert second.state_dict()["heads"].tolist() == [0, 0]
