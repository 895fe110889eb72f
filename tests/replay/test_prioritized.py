"""Prioritized drawing: distribution, weights, and what must not be drawn or updated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rltrain.replay.prioritized import Priorities


def priorities(masses: list[float], normalize_weights: str = "batch", seed: int = 0) -> Priorities:
    """Priorities with given masses; 0 is out."""
    made = Priorities(len(masses), 1.0, 1e-6, seed, normalize_weights)
    inside = np.flatnonzero(masses)
    made.enter(inside)
    made.tree.set(inside, np.array(masses, float)[inside])
    return made


def frequencies(made: Priorities, num_draws: int, batch_size: int) -> np.ndarray:
    """Share of each item in many draws."""
    counts = np.zeros(made.num_items, np.int64)
    for _ in range(num_draws // batch_size):
        counts += np.bincount(made.sample(batch_size, 0.4).items, minlength=made.num_items)
    return counts / counts.sum()


def test_items_of_no_priority_are_never_drawn_and_others_in_proportion():
    """Case N04."""
    np.testing.assert_allclose(frequencies(priorities([1, 0, 3, 0]), 100_000, 100), [0.25, 0, 0.75, 0], atol=0.005)


def test_nothing_entered_is_an_error_and_equal_items_are_uniform():
    """Case N04."""
    made = Priorities(4, 0.6, 1e-6, 0)
    with pytest.raises(ValueError, match="nothing can be drawn"):
        made.sample(2, 0.4)
    made.enter(np.arange(4))
    np.testing.assert_allclose(frequencies(made, 100_000, 10), 0.25, atol=0.005)


def test_places_that_are_not_filled_are_never_drawn():
    """Case N04: capacity 5, no power of two, 3 filled."""
    made = Priorities(5, 0.6, 1e-6, 0)
    made.enter(np.arange(3))
    assert (frequencies(made, 10_000, 10)[3:] == 0).all()


@pytest.mark.parametrize(("size", "batch_size"), [(7, 1), (100, 8), (1_000, 256), (513, 32)])
def test_drawing_distribution_passes_chi_square(size, batch_size):
    """Against the exact distribution, random masses with zeros; stratified draws vary less, so only the top counts."""
    rng = np.random.default_rng(size)
    masses = np.where(rng.random(size) < 0.3, 0.0, rng.exponential(size=size))
    masses[0] = 1.0
    num = 10_000_000 // batch_size * batch_size if size == 1_000 else 200_000 // batch_size * batch_size
    made = priorities(masses.tolist(), seed=3)
    found = frequencies(made, num, batch_size) * num
    expected = masses / masses.sum() * num
    assert (found[masses == 0] == 0).all()
    inside = masses > 0
    chi_square = ((found - expected)[inside] ** 2 / expected[inside]).sum()
    freedom = inside.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom), (chi_square, freedom)


def test_single_draws_have_the_spread_of_independent_ones():
    """A generator that is too even would pass the test above."""
    rng = np.random.default_rng(5)
    masses = rng.exponential(size=50)
    made = priorities(masses.tolist(), seed=9)
    num = 100_000
    found = frequencies(made, num, 1) * num
    expected = masses / masses.sum() * num
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert 49 - 4 * math.sqrt(98) < chi_square < 49 + 4 * math.sqrt(98)


def test_importance_weights_of_the_buffer():
    """Case N06."""
    made = priorities([1, 2, 3, 4], "buffer")
    draw = made.sample(1_000, 0.4)
    np.testing.assert_allclose(draw.is_weight, np.array([1, 0.7579, 0.6444, 0.5743])[draw.items], atol=1e-4)
    np.testing.assert_allclose(draw.probability, (1 + draw.items) / 10)
    assert set(draw.items) == {0, 1, 2, 3}


def test_importance_weights_of_the_batch():
    """Case N06: a batch of the last two, divided by its own largest."""
    made = priorities([0, 0, 3, 4], "batch")
    draw = made.sample(1_000, 0.4)
    np.testing.assert_allclose(draw.is_weight, np.array([0, 0, 1, 0.8913])[draw.items], atol=1e-4)


def test_beta_zero_corrects_nothing():
    assert (priorities([1, 2, 3, 4]).sample(100, 0.0).is_weight == 1).all()


def test_alpha_zero_is_uniform_whatever_the_errors():
    made = Priorities(4, 0.0, 1e-6, 0)
    made.enter(np.arange(4))
    draw = made.sample(4, 0.4)
    made.update(draw.items, draw.generations, np.array([0.0, 1e3, 5.0, 1e-9], np.float32))
    np.testing.assert_allclose(frequencies(made, 40_000, 4), 0.25, atol=0.005)
    assert (made.sample(4, 1.0).is_weight == 1).all()


def test_update_sets_the_power_of_the_error():
    made = Priorities(3, 0.5, 0.25, 0)
    made.enter(np.arange(3))
    none = np.zeros(3, np.uint32)
    assert made.update(np.arange(3), none, np.array([-3.75, 0.0, 8.75], np.float32)) == 3
    np.testing.assert_allclose(made.tree.masses, [2.0, 0.5, 3.0])


def test_new_items_get_the_largest_priority_so_far():
    made = Priorities(4, 1.0, 1e-6, 0)
    made.enter(np.array([0, 1]))
    assert made.tree.masses.tolist() == [1, 1, 0, 0]
    made.update(np.array([0, 1]), np.zeros(2, np.uint32), np.array([5.0, 0.1], np.float32))
    made.update(np.array([0]), np.zeros(1, np.uint32), np.array([0.2], np.float32))
    made.enter(np.array([2]))
    assert made.tree.masses[2] == pytest.approx(5.0)


def test_priority_of_an_overwritten_place_is_dropped_and_counted():
    made = Priorities(3, 1.0, 1e-6, 0)
    made.enter(np.arange(3))
    draw = made.sample(3, 0.4)
    made.leave(np.array([1]))
    made.enter(np.array([1]))
    assert made.update(draw.items, draw.generations, np.full(3, 7.0, np.float32)) == 2
    assert made.tree.masses[1] == 1.0
    assert made.num_stale == 1
    made.leave(np.array([2]))
    made.update(np.array([2]), made.generations[[2]], np.full(1, 7.0, np.float32))
    assert made.tree.masses[2] == 0, "what has left stays out"
    assert made.num_stale == 2


@pytest.mark.parametrize("error", [np.nan, np.inf, -np.inf])
def test_error_that_is_no_number_leaves_the_priority_and_is_counted(error):
    """Case N07."""
    made = priorities([1, 2])
    made.update(np.arange(2), np.zeros(2, np.uint32), np.array([error, 3.0], np.float32))
    np.testing.assert_allclose(made.tree.masses, [1.0, 3.0], rtol=1e-5)
    assert made.num_not_finite == 1


def test_draws_depend_on_seed_and_number_alone():
    first, second = priorities([1, 2, 3, 4], seed=1), priorities([1, 2, 3, 4], seed=1)
    batches = [first.sample(64, 0.4).items for _ in range(3)]
    second.load_state_dict(first.state_dict() | {"num_draws": np.array(1)})
    np.testing.assert_array_equal(second.sample(64, 0.4).items, batches[1])
    assert not np.array_equal(batches[0], batches[1])
    assert not np.array_equal(priorities([1, 2, 3, 4], seed=2).sample(64, 0.4).items, batches[0])


def test_state_is_restored_as_it_was():
    """Case C07: the first draw after a resume is that of the run that went on."""
    rng = np.random.default_rng(0)
    made = Priorities(100, 0.6, 1e-6, 5)
    made.enter(np.arange(70))
    for _ in range(5):
        draw = made.sample(32, 0.4)
        made.update(draw.items, draw.generations, rng.random(32, np.float32) * 9)
    resumed = Priorities(100, 0.6, 1e-6, 5)
    resumed.load_state_dict({name: x.copy() for name, x in made.state_dict().items()})
    assert resumed.largest == made.largest > 1
    np.testing.assert_array_equal(resumed.tree._sums, made.tree._sums)
    np.testing.assert_array_equal(resumed.sample(32, 0.4).items, made.sample(32, 0.4).items)


def test_state_of_a_larger_replay_is_refused():
    made = Priorities(100, 0.6, 1e-6, 5)
    made.enter(np.arange(100))
    with pytest.raises(ValueError, match="do not fit"):
        Priorities(50, 0.6, 1e-6, 5).load_state_dict(made.state_dict())
