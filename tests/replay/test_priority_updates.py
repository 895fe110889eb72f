"""Priorities that come in, come back, too late or as no numbers; an oracle over random sequences; checkpoints."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from rltrain.replay.prioritized import Priorities
from tests.replay.priorities import GENERATIONS, TINY, with_priorities


def test_update_is_the_error_and_eps_to_the_power_of_alpha():
    priorities = Priorities(4, 0.5, 0.25, 0)
    priorities.enter(np.arange(3))
    assert priorities.update(np.arange(3), GENERATIONS[:3], np.array([0, -2, 8.75], np.float32)) == 3
    assert priorities.tree.masses.tolist() == [0.5, 1.5, 3, 0]


def test_enter_gives_the_largest_priority_so_far():
    priorities = with_priorities([0.5, 1, 1, 1], places=7)

    assert priorities.tree.masses[4:].tolist() == [0, 0, 0]
    priorities.enter(np.array([4]))
    assert priorities.tree.masses[4] == pytest.approx(1)
    priorities.update(np.arange(2), GENERATIONS[:2], np.array([9, 2], np.float32))
    priorities.update(np.arange(2), GENERATIONS[:2], np.array([3, 2], np.float32))
    priorities.enter(np.array([5, 6]))
    np.testing.assert_allclose(priorities.tree.masses[5:], 9, rtol=1e-9)


def test_update_of_a_place_that_was_given_on_is_dropped_and_counted():
    priorities = with_priorities([1, 1, 1])
    draw = priorities.sample(3, 0.4)
    assert draw.items.tolist() == [0, 1, 2]
    priorities.leave(np.array([1]))
    priorities.enter(np.array([1]))
    assert priorities.update(draw.items, draw.generations, np.full(3, 5, np.float32)) == 2
    np.testing.assert_allclose(priorities.tree.masses, [5, 1, 5], rtol=1e-9)
    assert (priorities.num_stale, priorities.num_not_finite) == (1, 0)
    again = priorities.sample(30, 0.4)
    assert priorities.update(again.items, again.generations, np.full(30, 2, np.float32)) == 30
    np.testing.assert_allclose(priorities.tree.masses, 2, rtol=1e-9)


def test_update_of_a_place_that_is_empty_is_dropped_also_with_its_generation():
    priorities = with_priorities([1, 1])
    priorities.leave(np.array([0]))
    assert priorities.update(np.array([0]), priorities.generations[:1].copy(), np.ones(1, np.float32)) == 0
    assert priorities.tree.masses.tolist() == pytest.approx([0, 1])
    assert priorities.num_stale == 1


def test_update_with_errors_that_are_no_numbers_leaves_the_priority_and_counts():
    priorities = with_priorities([2, 2, 2, 2])
    errors = np.array([np.nan, np.inf, -np.inf, 3], np.float32)
    before = priorities.tree.masses.copy()
    assert priorities.update(np.arange(4), GENERATIONS[:4], errors) == 1
    np.testing.assert_array_equal(priorities.tree.masses[:3], before[:3])
    assert (priorities.num_stale, priorities.num_not_finite) == (0, 3)
    np.testing.assert_allclose(priorities.largest, 3, rtol=1e-9)


def test_update_of_equal_items_takes_the_last():
    priorities = with_priorities([1, 1])
    priorities.update(np.array([0, 1, 0]), GENERATIONS[:3], np.array([7, 5, 3], np.float32))
    np.testing.assert_allclose(priorities.tree.masses, [3, 5], rtol=1e-9)
    assert priorities.tree.total == priorities.tree.masses.sum()


def test_update_takes_items_and_errors_of_other_dtypes_and_strides_as_what_they_mean():
    priorities = with_priorities(np.ones(10))
    items = np.arange(20, dtype=np.int32)[4:10:2]
    assert priorities.update(items, np.zeros(6, np.int64)[::2], np.array([4.0, 6.0, 8.0])) == 3
    np.testing.assert_allclose(priorities.tree.masses, [1, 1, 1, 1, 4, 1, 6, 1, 8, 1], rtol=1e-9)


@pytest.mark.parametrize("items", [[0, -1], [0, 3], [0], [[0, 1]]])
def test_update_that_does_not_fit_is_refused_and_changes_nothing(items):
    priorities = with_priorities([1, 1, 1])
    before = priorities.tree.masses.copy()
    with pytest.raises(ValueError, match=r"items must be in \[0, 3\)|items, generations and td_error"):
        priorities.update(np.array(items), GENERATIONS[:2], np.full(2, 5, np.float32))
    np.testing.assert_array_equal(priorities.tree.masses, before)


def test_leave_out_of_range_is_refused_and_changes_no_generation():
    priorities = with_priorities([1, 1, 1])
    for items in ([0, -1], [0, 3]):
        with pytest.raises(ValueError, match="leaves must be in"):
            priorities.leave(np.array(items))
    assert priorities.generations.tolist() == [0, 0, 0]
    assert priorities.tree.total == pytest.approx(3)


def test_enter_leave_and_update_of_nothing_do_nothing():
    priorities, none = with_priorities([1, 1]), np.zeros(0, np.int64)
    priorities.enter(none)
    priorities.leave(none)
    assert priorities.update(none, none.astype(np.uint32), none.astype(np.float32)) == 0
    assert priorities.tree.total == pytest.approx(2)


def test_unknown_normalization_is_refused():
    with pytest.raises(ValueError, match="'mean': accepted are 'batch' and 'buffer'"):
        Priorities(4, 0.6, 1e-6, 0, "mean")


def test_priorities_equal_oracle_over_random_sequences():
    rng, num = np.random.default_rng(6), 70
    priorities = Priorities(num, 0.6, 0.01, 0)
    masses, generations, largest, stale = [0.0] * num, [0] * num, 1.0, 0
    draws = []
    for _ in range(2000):
        kind, items = rng.integers(4), rng.permutation(num)[: rng.integers(1, 12)]
        if kind == 0:
            priorities.enter(items)
            masses = [largest if i in items else mass for i, mass in enumerate(masses)]
        elif kind == 1:
            priorities.leave(items)
            masses = [0.0 if i in items else mass for i, mass in enumerate(masses)]
            generations = [count + (i in items) for i, count in enumerate(generations)]
        elif kind == 2 and any(masses):
            draws.append(priorities.sample(int(rng.integers(1, 30)), 0.4))
            assert draws[-1].generations.tolist() == [generations[i] for i in draws[-1].items]
            np.testing.assert_allclose(draws[-1].probability, [masses[i] / sum(masses) for i in draws[-1].items])
        elif kind == 3 and draws:
            draw = draws.pop(rng.integers(len(draws)))
            errors = rng.exponential(size=len(draw.items)).astype(np.float32)
            priorities.update(draw.items, draw.generations, errors)
            for item, generation, error in zip(draw.items, draw.generations, errors, strict=True):
                if generation == generations[item] and masses[item] > 0:
                    masses[item] = (abs(float(error)) + 0.01) ** 0.6
                    largest = max(largest, masses[item])
                else:
                    stale += 1
        np.testing.assert_allclose(priorities.tree.masses, masses, rtol=1e-14)
    assert priorities.num_stale == stale > 100
    assert priorities.largest == pytest.approx(largest, rel=1e-14)


def test_loaded_priorities_go_on_as_the_saved_ones_would_have():
    saved = with_priorities(np.random.default_rng(7).uniform(0.5, 4, 100), places=150, seed=9)
    for _ in range(5):
        draw = saved.sample(16, 0.4)
        saved.update(draw.items, draw.generations, np.full(16, 3, np.float32))
    loaded = Priorities(150, 1.0, TINY, 9)
    loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    for made in (saved, loaded):
        made.enter(np.arange(100, 120))
    np.testing.assert_array_equal(loaded.tree._sums, saved.tree._sums)
    for _ in range(5):
        first, second = saved.sample(16, 0.4), loaded.sample(16, 0.4)
        np.testing.assert_array_equal(first.items, second.items)
        np.testing.assert_array_equal(first.is_weight, second.is_weight)


def test_state_of_places_never_used_is_not_kept():
    assert with_priorities([1, 0, 3], places=1000).state_dict()["masses"].shape == (3,)
    empty = Priorities(5, 0.6, 1e-6, 0)
    loaded = with_priorities(np.ones(5))
    loaded.load_state_dict(empty.state_dict())
    assert (loaded.tree.total, loaded.largest) == (0, 1)


def test_draws_from_before_a_load_change_nothing_after_it():
    priorities = with_priorities([1, 2, 3])
    draw, state = priorities.sample(3, 0.4), copy.deepcopy(priorities.state_dict())
    priorities.load_state_dict(state)
    assert priorities.update(draw.items, draw.generations, np.full(3, 9, np.float32)) == 0
    assert priorities.num_stale == 3


@pytest.mark.parametrize("wrong", [
    {"masses": np.ones(4)}, {"masses": np.array([1, np.nan])}, {"masses": np.array([1, np.inf])},
    {"masses": np.array([-1.0])}, {"largest": np.array(np.nan)}, {"largest": np.array(0.0)},
    {"largest": np.array(np.inf)}, {"num_draws": np.array(-1)},
])
def test_state_that_does_not_fit_is_refused_and_changes_nothing(wrong):
    priorities = with_priorities([1, 2, 3])
    before = priorities.tree.masses.copy()
    with pytest.raises(ValueError, match="the saved priorities do not fit"):
        priorities.load_state_dict({**priorities.state_dict(), **wrong})
    np.testing.assert_array_equal(priorities.tree.masses, before)
    assert priorities.largest == pytest.approx(3)
