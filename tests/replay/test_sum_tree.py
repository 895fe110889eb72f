"""The native sum tree against ten lines of Python."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.replay.sum_tree import SumTree

SIZES = [1, 2, 5, 8, 9, 64, 65, 513, 4_097]


def found_by_hand(masses: np.ndarray, wanted: float) -> int:
    """The leaf that holds `wanted` of the total."""
    return int(np.searchsorted(np.cumsum(masses), wanted, side="right"))


@pytest.mark.parametrize("size", SIZES)
def test_tree_after_random_changes_equals_the_masses_and_finds_as_a_cumulative_sum_does(size):
    rng = np.random.default_rng(size)
    tree, masses = SumTree(size), np.zeros(size)
    for _ in range(30):
        leaves = rng.integers(0, size, 20)
        values = np.where(rng.random(20) < 0.3, 0.0, rng.integers(1, 100, 20))  # whole numbers: sums are exact
        for leaf, value in zip(leaves, values, strict=True):
            masses[leaf] = value
        tree.set(leaves, values)
        np.testing.assert_array_equal(tree.masses, masses)
        assert tree.total == masses.sum()
        assert tree.smallest == min(masses[masses > 0], default=np.inf)
        if tree.total:
            wanted = rng.random(50) * tree.total
            np.testing.assert_array_equal(tree.find(wanted), [found_by_hand(masses, u) for u in wanted])


@pytest.mark.parametrize("size", SIZES)
def test_find_never_gives_a_leaf_of_mass_zero_even_at_the_ends(size):
    """Case N04."""
    rng = np.random.default_rng(size)
    tree = SumTree(size)
    masses = np.where(rng.random(size) < 0.5, 0.0, rng.random(size) * 10.0 ** rng.integers(-12, 12, size))
    masses[rng.integers(size)] = 1.0
    tree.set(np.arange(size), masses)
    ends = np.array([0.0, tree.total, np.nextafter(tree.total, 0), np.nextafter(tree.total, np.inf), 2 * tree.total])
    edges = np.cumsum(masses)
    wanted = np.concatenate([ends, edges, np.nextafter(edges, 0), rng.random(1_000) * tree.total])
    assert (tree.masses[tree.find(wanted)] > 0).all()


def test_find_of_the_case_gives_leaf_zero_or_two():
    """Case N04: u of 0, 1, 4 and the number below 4."""
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([1.0, 0.0, 3.0, 0.0]))
    assert tree.find(np.array([0.0, 1.0, 4.0, np.nextafter(4.0, 0)])).tolist() == [0, 2, 2, 2]


def test_tree_is_a_function_of_its_leaves_whatever_was_set_before():
    """Nothing drifts: no parent is changed by a difference."""
    rng = np.random.default_rng(0)
    worn, fresh = SumTree(1_000), SumTree(1_000)
    for _ in range(2_000):
        worn.set(rng.integers(0, 1_000, 64), rng.random(64) * 10.0 ** rng.integers(-9, 9))
    fresh.set(np.arange(1_000), worn.masses.copy())
    assert worn.total == fresh.total
    assert worn.smallest == fresh.smallest
    np.testing.assert_array_equal(worn._sums, fresh._sums)
    np.testing.assert_array_equal(worn._mins, fresh._mins)


@pytest.mark.stress
def test_tree_does_not_drift_in_a_hundred_million_updates():
    """Takes about a minute."""
    rng = np.random.default_rng(0)
    worn, fresh = SumTree(100_000), SumTree(100_000)
    leaves, masses = rng.integers(0, 100_000, 2**20), rng.random(2**20)
    for i in range(96):
        worn.set(leaves, masses * (1 + i))
    fresh.set(np.arange(100_000), worn.masses.copy())
    np.testing.assert_array_equal(worn._sums, fresh._sums)


def test_load_computes_the_inner_nodes():
    rng = np.random.default_rng(1)
    set_one_by_one, loaded = SumTree(777), SumTree(777)
    masses = rng.random(500)
    set_one_by_one.set(np.arange(500), masses)
    loaded.set(np.arange(777), np.ones(777))
    loaded.load(masses)
    np.testing.assert_array_equal(loaded._sums, set_one_by_one._sums)
    np.testing.assert_array_equal(loaded._mins, set_one_by_one._mins)


@pytest.mark.parametrize(
    ("leaves", "masses"),
    [([4], [1.0]), ([-1], [1.0]), ([0, 1], [1.0, -0.5]), ([0], [np.nan]), ([0], [np.inf]), ([0, 1], [1.0])],
)
def test_set_of_what_does_not_fit_is_refused_and_changes_nothing(leaves, masses):
    tree = SumTree(4)
    tree.set(np.array([0, 3]), np.array([2.0, 5.0]))
    with pytest.raises(ValueError, match="leaves"):
        tree.set(np.array(leaves), np.array(masses))
    assert tree.masses.tolist() == [2.0, 0.0, 0.0, 5.0]
    assert tree.total == 7.0


def test_leaves_begin_at_a_cache_line():
    """Eight children are one line; else each node costs two."""
    assert all(SumTree(100)._sums.ctypes.data % 64 == 0 for _ in range(16))
