"""What is drawn how often (case N04), and how it is weighed (case N06)."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.replay.prioritized import Priorities
from tests.replay.priorities import GENERATIONS, with_priorities


def counts_of(priorities, num_draws, batch_size):
    found = np.zeros(priorities.num_items, np.int64)
    for _ in range(num_draws // batch_size):
        found += np.bincount(priorities.sample(batch_size, 0.4).items, minlength=len(found))
    return found


# -- what is drawn (case N04) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_sample_frequencies_are_the_priorities_and_zero_is_never_drawn(batch_size):
    counts = counts_of(with_priorities([1, 0, 3, 0]), 100_000, batch_size)
    assert counts[[1, 3]].tolist() == [0, 0]
    np.testing.assert_allclose(counts[[0, 2]] / 100_000, [0.25, 0.75], atol=0.005)


def test_sample_of_a_replay_that_is_not_full_stays_within_it():
    counts = counts_of(with_priorities([1, 1, 1], places=5), 30_000, 10)
    np.testing.assert_allclose(counts / 30_000, [1 / 3, 1 / 3, 1 / 3, 0, 0], atol=0.01)


def test_sample_of_priorities_all_zero_is_uniform():
    priorities = with_priorities([1, 1, 1, 1], alpha=0.6)
    priorities.update(np.arange(4), GENERATIONS[:4], np.zeros(4, np.float32))
    np.testing.assert_allclose(counts_of(priorities, 40_000, 10) / 40_000, 0.25, atol=0.01)


def test_sample_of_nothing_is_refused():
    priorities = Priorities(4, 0.6, 1e-6, 0)
    with pytest.raises(ValueError, match="no item has entered"):
        priorities.sample(3, 0.4)
    priorities.enter(np.arange(4))
    priorities.leave(np.arange(4))
    with pytest.raises(ValueError, match="no item has entered"):
        priorities.sample(3, 0.4)
    with pytest.raises(ValueError, match="batch_size = 0"):
        with_priorities([1]).sample(0, 0.4)


def test_sample_one_by_one_follows_the_exact_distribution():
    rng = np.random.default_rng(2)
    wanted = np.where(rng.random(50) < 0.3, 0, rng.uniform(0.1, 1, 50)).astype(np.float32)
    priorities = with_priorities(wanted, alpha=0.7)
    has_mass = wanted > 0
    expected = 200_000 * wanted[has_mass] ** 0.7 / (wanted[has_mass] ** 0.7).sum()
    counts = counts_of(priorities, 200_000, 1)
    chi_squared, freedom = ((counts[has_mass] - expected) ** 2 / expected).sum(), len(expected) - 1
    assert counts[~has_mass].sum() == 0
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)


def test_sample_ten_million_in_batches_follows_the_distribution_and_each_batch_its_strata():
    rng = np.random.default_rng(3)
    wanted = np.where(rng.random(700) < 0.3, 0, rng.uniform(0.1, 1, 700)).astype(np.float32)
    priorities = with_priorities(wanted)
    share = wanted.astype(np.float64) / wanted.sum(dtype=np.float64)
    total = np.zeros(700, np.int64)
    for _ in range(100):
        counts = np.bincount(priorities.sample(100_000, 0.4).items, minlength=700)
        assert (np.abs(counts - 100_000 * share) < 2).all()  # one part at most at either edge of an item
        total += counts
    # What is left of chance is one part at either edge: variance at most 1/2 a batch, against 1e5 p without strata.
    assert (np.abs(total - 1e7 * share) < 5 * np.sqrt(100 / 2)).all()
    assert total[wanted == 0].sum() == 0


def test_sample_batch_has_one_item_from_each_equal_part():
    priorities = with_priorities(np.ones(1000))
    for _ in range(20):
        assert (priorities.sample(100, 0.4).items // 10).tolist() == list(range(100))


def test_sample_places_within_the_parts_are_uniform_and_uncorrelated():
    priorities = with_priorities(np.ones(1000))
    places = np.array([priorities.sample(10, 0.4).items % 100 for _ in range(5000)])
    np.testing.assert_allclose(places.mean(0), 49.5, atol=5 * 29 / np.sqrt(5000))
    within = np.corrcoef(places.T)[~np.eye(10, dtype=bool)]
    assert np.abs(within).max() < 5 / np.sqrt(5000)
    assert abs(np.corrcoef(places[1:].ravel(), places[:-1].ravel())[0, 1]) < 5 / np.sqrt(50_000)


def test_sample_is_a_function_of_seed_and_number_of_the_draw():
    first, second, other = (with_priorities(np.ones(1000), seed=seed) for seed in (5, 5, 6))
    draws = [first.sample(64, 0.4).items.tolist() for _ in range(10)]
    assert draws == [second.sample(64, 0.4).items.tolist() for _ in range(10)]
    assert len({tuple(items) for items in draws}) == 10
    assert draws[0] != other.sample(64, 0.4).items.tolist()


def test_alpha_zero_is_uniform_whatever_the_errors():
    priorities = with_priorities(np.ones(10), alpha=0.0, normalize="buffer")
    priorities.update(np.arange(10), GENERATIONS[:10], np.float32(10.0) ** np.arange(-5, 5))
    assert set(priorities.tree.masses) == {1.0}
    draw = priorities.sample(10, 1.0)
    assert draw.items.tolist() == list(range(10))
    assert set(draw.is_weight) == {1.0}
    assert set(draw.probability) == {0.1}


# -- importance weights (case N06) ---------------------------------------------------------------------------------


def test_weights_of_the_whole_buffer_have_the_known_values():
    priorities = with_priorities([1, 2, 3, 4], normalize="buffer")
    weights = {}
    for _ in range(20):
        draw = priorities.sample(8, 0.4)
        weights.update(zip(draw.items.tolist(), draw.is_weight, strict=True))
    np.testing.assert_allclose([weights[i] for i in range(4)], [1, 0.7579, 0.6444, 0.5743], atol=5e-5)


def test_weights_of_a_batch_have_the_known_values():
    priorities = with_priorities([1, 2, 3, 4])
    draw = next(d for d in (priorities.sample(2, 0.4) for _ in range(200)) if d.items.tolist() == [2, 3])
    np.testing.assert_allclose(draw.is_weight, [1, 0.8913], atol=5e-5)
    np.testing.assert_allclose(draw.probability, [0.3, 0.4])


@pytest.mark.parametrize("normalize", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_the_formula_of_the_paper(normalize, beta):
    errors = np.random.default_rng(4).exponential(size=300).astype(np.float32)
    priorities = Priorities(400, 0.6, 0.01, 0, normalize)
    priorities.enter(np.arange(300))
    priorities.update(np.arange(300), GENERATIONS[:300], errors)
    probability = (errors.astype(np.float64) + 0.01) ** 0.6
    probability /= probability.sum()
    draw = priorities.sample(32, beta)
    np.testing.assert_allclose(draw.probability, probability[draw.items], rtol=1e-12)
    weight = (300 * probability) ** -beta
    np.testing.assert_allclose(
        draw.is_weight, weight[draw.items] / (weight if normalize == "buffer" else weight[draw.items]).max(), rtol=1e-6
    )
    assert draw.is_weight.max() <= 1


def test_weights_of_extreme_priorities_are_finite():
    priorities = with_priorities([1, 1], alpha=40.0, normalize="buffer")
    priorities.update(np.arange(2), GENERATIONS[:2], np.array([0, 3e38], np.float32))
    assert np.isfinite(priorities.tree.total)
    assert priorities.tree.masses.min() > 0
    draw = priorities.sample(8, 1.0)
    assert np.isfinite(draw.is_weight).all()
    assert np.isfinite(draw.probability).all()
