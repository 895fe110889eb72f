"""The sum tree: an oracle in a few lines, exact searches, rounding at the ends, the distribution, no drift."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.replay.sum_tree import SumTree

SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 512, 513, 1000]
NO_MASS = np.zeros(0)
NO_LEAF = np.zeros(0, np.int64)


def filled(masses):
    tree = SumTree(len(masses))
    tree.set(np.arange(len(masses)), np.asarray(masses, np.float64))
    return tree


def sum_as_the_tree_does(masses):
    """Eight neighbours at a time, from left to right, until one is left."""
    level = list(masses)
    while len(level) > 1:
        level = [sum(level[i : i + 8]) for i in range(0, len(level), 8)]
    return level[0]


def random_masses(rng, num):
    """Over many orders of magnitude, a third of them 0."""
    return np.where(rng.random(num) < 1 / 3, 0.0, 10.0 ** rng.uniform(-8, 8, num))


@pytest.mark.parametrize("num", SIZES)
def test_tree_equals_oracle_over_random_changes(num):
    rng, tree, masses = np.random.default_rng(num), SumTree(num), np.zeros(num)
    for _ in range(200):
        leaves = rng.integers(0, num, rng.integers(1, 20))
        values = random_masses(rng, len(leaves))
        tree.set(leaves, values)
        for leaf, value in zip(leaves, values, strict=True):
            masses[leaf] = value
        np.testing.assert_array_equal(tree.masses, masses)
        assert tree.total == sum_as_the_tree_does(masses)
        assert tree.smallest == min(masses[masses > 0], default=np.inf)


@pytest.mark.parametrize("num", SIZES)
def test_find_equals_a_search_of_the_prefix_sums(num):
    rng = np.random.default_rng(num)
    masses = np.where(rng.random(num) < 1 / 3, 0, rng.integers(1, 1000, num)).astype(np.float64)  # exact in any order
    masses[rng.integers(num)] = 5
    edges = np.cumsum(masses)
    wanted = np.concatenate([[0], edges[:-1], edges - 1e-6, rng.uniform(0, edges[-1], 1000)])
    wanted = wanted[(wanted >= 0) & (wanted < edges[-1])]
    np.testing.assert_array_equal(filled(masses).find(wanted), np.searchsorted(edges, wanted, side="right"))


def test_find_at_the_ends_is_never_a_leaf_without_mass():
    tree = filled([1, 0, 3, 0])
    ends = [0.0, 1.0, 4.0, np.nextafter(4, 0), np.nextafter(4, 5), 1e300, np.inf, -0.0, -1.0, np.nan]
    assert tree.find(np.array(ends)).tolist() == [0, 2, 2, 2, 2, 2, 2, 0, 0, 0]


def test_find_below_the_first_mass_is_the_first_leaf_that_has_any():
    assert filled([0, 0, 0, 2, 1]).find(np.array([-1.0, 0.0, np.nan])).tolist() == [3, 3, 3]


@pytest.mark.parametrize("num", [9, 65, 1000])
def test_find_where_rounding_leads_past_a_node_stays_on_mass(num):
    rng = np.random.default_rng(num)
    for _ in range(200):
        masses = random_masses(rng, num)
        masses[rng.integers(num)] = 1.0
        tree = filled(masses)
        edges = np.cumsum(masses)
        wanted = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), [tree.total]])
        assert (masses[tree.find(wanted)] > 0).all()


def test_find_in_an_empty_tree_is_in_range():
    assert SumTree(5).find(np.array([0.0, 1.0])).tolist() == [0, 0]
    assert SumTree(5).smallest == np.inf


def test_find_draws_leaves_in_proportion_to_their_mass():
    rng = np.random.default_rng(0)
    for num in (5, 100, 3000):
        masses = np.where(rng.random(num) < 0.3, 0, rng.uniform(0.1, 1, num))
        tree, counts = filled(masses), np.zeros(num, np.int64)
        for _ in range(10):
            counts += np.bincount(tree.find(rng.random(1_000_000) * tree.total), minlength=num)
        has_mass = masses > 0
        expected = 1e7 * masses[has_mass] / masses.sum()
        assert counts[~has_mass].sum() == 0
        chi_squared, freedom = ((counts[has_mass] - expected) ** 2 / expected).sum(), len(expected) - 1
        assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom) + 5


def check_no_drift(num_updates):
    rng, num = np.random.default_rng(1), 3000
    tree = filled(random_masses(rng, num))
    for _ in range(num_updates // 1000):
        tree.set(rng.integers(0, num, 1000), random_masses(rng, 1000))
    fresh = filled(tree.masses)
    np.testing.assert_array_equal(tree._sums, fresh._sums)
    np.testing.assert_array_equal(tree._mins, fresh._mins)
    assert tree.total == sum_as_the_tree_does(tree.masses)


def test_tree_after_many_updates_is_that_of_its_leaves():
    check_no_drift(1_000_000)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_tree_after_a_hundred_million_updates_is_that_of_its_leaves():
    """Ten seconds."""
    check_no_drift(100_000_000)


@pytest.mark.parametrize("num", SIZES)
def test_load_makes_the_tree_that_set_makes(num):
    masses = random_masses(np.random.default_rng(num), num)
    tree, first = filled(np.ones(num)), num // 2
    tree.load(masses[:first])
    expected = filled([*masses[:first], *np.zeros(num - first)])
    np.testing.assert_array_equal(tree._sums, expected._sums)
    np.testing.assert_array_equal(tree._mins, expected._mins)


@pytest.mark.parametrize("masses", [[1, 2, 3, 4, 5, 6], [1, -1], [np.nan], [np.inf], [2.0**501]])
def test_load_of_what_does_not_fit_is_refused_and_changes_nothing(masses):
    tree = filled([1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=r"at most 5 masses|finite and not negative"):
        tree.load(np.array(masses, np.float64))
    assert tree.masses.tolist() == [1, 2, 3, 4, 5]
    assert tree.total == 15


@pytest.mark.parametrize(("leaves", "masses"), [
    ([0, -1], [7, 7]), ([0, 5], [7, 7]), ([0, 1], [7, -1e-300]), ([0, 1], [7, np.nan]), ([0, 1], [7, np.inf]),
    ([0, 1], [7, 2.0**501]),
])
def test_set_out_of_range_is_refused_and_changes_nothing(leaves, masses):
    tree = filled([1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=r"leaves must be in \[0, 5\) and masses finite"):
        tree.set(np.array(leaves), np.array(masses, np.float64))
    assert tree.masses.tolist() == [1, 2, 3, 4, 5]
    assert (tree.total, tree.smallest) == (15, 1)


def test_set_of_different_lengths_is_refused():
    with pytest.raises(ValueError, match=r"must both be \[B\]"):
        SumTree(5).set(np.arange(3), np.ones(2))


def test_set_and_find_of_nothing_do_nothing():
    tree = filled([1, 2])
    tree.set(NO_LEAF, NO_MASS)
    assert tree.find(NO_MASS).shape == (0,)
    assert tree.total == 3


def test_tree_without_leaves_is_refused():
    with pytest.raises(ValueError, match="at least one leaf"):
        SumTree(0)


def test_nodes_lie_on_cache_lines_and_take_the_memory_that_is_said():
    tree = SumTree(100_000)
    assert tree._sums.ctypes.data % 64 == 0
    assert tree._mins.ctypes.data % 64 == 0
    assert all(tree.handle.offsets[level] % 8 == 0 for level in range(tree.handle.num_levels))
    assert (tree._sums.nbytes + tree._mins.nbytes) / 100_000 < 10.3
