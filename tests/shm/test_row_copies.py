"""Row copies against numpy indexing."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.shm.ring import TrajectoryRing
from tests.shm.arenas import arena

SLOTS, STEPS, N = 6, 6, 3


@pytest.fixture
def ring():
    shared = arena(num_slots=SLOTS, fragment_length=STEPS - 1, num_envs=N)
    ring, rng = TrajectoryRing(shared), np.random.default_rng(0)
    for f in shared.layout.schema.fields:
        ring.field(f.name)[...] = rng.integers(0, 2 if f.dtype == "bool" else 100, ring.field(f.name).shape)
    yield ring
    shared.close()


def names_of(ring):
    return [f.name for f in ring.schema.fields]


def rows(ring, name, num_requests):
    f = next(f for f in ring.schema.fields if f.name == name)
    return np.zeros((num_requests * (N if f.per_env else 1), *f.shape), f.dtype)


def batch(ring, num_fragments):
    return {
        f.name: np.zeros((STEPS, num_fragments * (N if f.per_env else 1), *f.shape), f.dtype)
        for f in ring.schema.fields
    }


def test_field_is_a_view_of_the_slab(ring):
    assert ring.field("obs.image").shape == (SLOTS, STEPS, N, 2, 3)
    assert ring.field("policy_version").shape == (SLOTS, STEPS)
    ring.field("reward")[2, 1] = 7
    assert (ring.field("reward")[2, 1] == 7).all()


def test_gather_step_every_field_equals_indexing(ring):
    rng = np.random.default_rng(1)
    out = {name: rows(ring, name, 10) for name in names_of(ring)}
    for num_requests in (1, 4, 10):
        slots, steps = rng.integers(0, SLOTS, num_requests), rng.integers(0, STEPS, num_requests)
        ring.gather_step(names_of(ring), slots, steps, out)
        for name, array in out.items():
            expected = ring.field(name)[slots, steps].reshape(-1, *array.shape[1:])
            np.testing.assert_array_equal(array[: len(expected)], expected)


def test_gather_step_rows_behind_the_requests_are_left_alone(ring):
    out = {"reward": np.full(5 * N, -1, np.float32)}
    ring.gather_step(["reward"], np.array([1, 2]), np.array([0, 0]), out)
    assert (out["reward"][2 * N :] == -1).all()


def test_gather_step_array_replaced_in_the_same_dict_fills_the_new_one(ring):
    out = {"reward": np.zeros(N, np.float32)}
    slots, steps = np.array([1]), np.array([2])
    ring.gather_step(["reward"], slots, steps, out)
    out["reward"] = np.zeros(N, np.float32)
    ring.gather_step(["reward"], slots, steps, out)
    np.testing.assert_array_equal(out["reward"], ring.field("reward")[1, 2])


def test_scatter_step_writes_those_rows_only(ring):
    rng = np.random.default_rng(2)
    slots, steps = np.array([0, 5, 5]), np.array([3, 0, 5])
    names = ["action", "behaviour_logp", "policy_version"]
    values = {name: rng.integers(0, 100, rows(ring, name, 3).shape).astype(rows(ring, name, 3).dtype) for name in names}
    expected = {name: ring.field(name).copy() for name in names_of(ring)}
    for name in names:
        expected[name][slots, steps] = values[name].reshape(3, *expected[name].shape[2:])
    ring.scatter_step(names, slots, steps, values)
    for name in names_of(ring):
        np.testing.assert_array_equal(ring.field(name), expected[name])


def test_scatter_step_strided_rows_are_copied_right(ring):
    values = np.arange(4 * N, dtype=np.float32)[::2]
    ring.scatter_step(["reward"], np.array([1, 2]), np.array([3, 4]), {"reward": values})
    np.testing.assert_array_equal(ring.field("reward")[[1, 2], [3, 4]].reshape(-1), values)


def test_gather_fragment_every_field_lands_in_its_columns(ring):
    out = batch(ring, 4)
    placed = {0: 3, 2: 1, 3: 5}
    for position, slot in placed.items():
        ring.gather_fragment(slot, position * N, out)
    for name, array in out.items():
        width = array.shape[1] // 4
        for position in range(4):
            block = array[:, position * width : (position + 1) * width]
            if position in placed:
                np.testing.assert_array_equal(block, ring.field(name)[placed[position]].reshape(block.shape))
            else:
                assert not block.any()


def test_gather_fragment_alternating_batches_fill_their_own(ring):
    outs = [batch(ring, 2) for _ in range(20)]
    for _ in range(2):
        for slot, out in enumerate(outs):
            ring.gather_fragment(slot % SLOTS, N, out)
    for slot, out in enumerate(outs):
        np.testing.assert_array_equal(out["reward"][:, N:], ring.field("reward")[slot % SLOTS])


@pytest.mark.parametrize(("slots", "steps"), [([SLOTS], [0]), ([-1], [0]), ([0], [STEPS]), ([0], [-1])])
def test_step_copies_out_of_range_are_refused(ring, slots, steps):
    out = {"reward": np.zeros(N, np.float32)}
    with pytest.raises(IndexError, match="slots must be in"):
        ring.gather_step(["reward"], np.array(slots), np.array(steps), out)
    with pytest.raises(IndexError, match="slots must be in"):
        ring.scatter_step(["reward"], np.array(slots), np.array(steps), out)


def test_gather_step_array_too_short_is_refused_even_when_seen_before(ring):
    out = {"reward": np.zeros(2 * N, np.float32)}
    ring.gather_step(["reward"], np.array([0, 1]), np.array([0, 0]), out)
    with pytest.raises(IndexError, match="reward: 3 blocks"):
        ring.gather_step(["reward"], np.array([0, 1, 2]), np.array([0, 0, 0]), out)


@pytest.mark.parametrize("array", [
    np.zeros(N, np.float64), np.zeros((N, 1), np.float32), np.zeros(2 * N, np.float32)[::2],
])
def test_gather_step_array_that_does_not_fit_is_refused(ring, array):
    with pytest.raises(ValueError, match="reward must be C-contiguous float32"):
        ring.gather_step(["reward"], np.array([0]), np.array([0]), {"reward": array})


def test_gather_step_read_only_array_is_refused(ring):
    array = np.zeros(N, np.float32)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        ring.gather_step(["reward"], np.array([0]), np.array([0]), {"reward": array})


@pytest.mark.parametrize(("slot", "column", "error"), [
    (SLOTS, 0, IndexError), (-1, 0, IndexError), (0, 2 * N, IndexError), (0, 1, ValueError), (0, -N, ValueError),
])
def test_gather_fragment_out_of_range_is_refused(ring, slot, column, error):
    with pytest.raises(error):
        ring.gather_fragment(slot, column, batch(ring, 2))
