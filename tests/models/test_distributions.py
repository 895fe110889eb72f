"""Distributions: golden values, agreement of sampling and density, stability."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rltrain.models.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    TwoWay,
    log_tanh_slope,
)

NUM_UNIFORMS = 20_000
GRID = ((torch.arange(NUM_UNIFORMS) + 0.5) / NUM_UNIFORMS).float()
SMALLEST, LARGEST = 2.0**-25, 1 - 2.0**-24


def test_categorical_sample_over_a_grid_has_the_probabilities():
    logits = torch.tensor([0.5, 0.2, 0.3]).log()
    action = Categorical(logits.expand(NUM_UNIFORMS, 3)).sample(GRID[:, None])
    counts = torch.bincount(action, minlength=3) / NUM_UNIFORMS
    torch.testing.assert_close(counts, torch.tensor([0.5, 0.2, 0.3]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("uniform", [SMALLEST, 0.5, LARGEST])
def test_categorical_sample_at_the_ends_never_picks_an_impossible_value(uniform):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, 7, generator=generator) * 5
    logits[:, [0, 3, 6]] = -1e30
    for distribution in (Categorical(logits), MultiCategorical(logits[:, None])):
        action = distribution.sample(torch.full((5000, 1), uniform)).reshape(-1)
        assert set(action.tolist()) <= {1, 2, 4, 5}


def test_categorical_sample_on_a_boundary_takes_the_value_that_reaches_it():
    logits = torch.tensor([[0.0, 0.0, -1e30]]).repeat(3, 1)
    action = Categorical(logits).sample(torch.tensor([[0.5], [0.50001], [1.0]]))
    assert action.tolist() == [0, 1, 1]


def test_categorical_log_prob_and_entropy_match_a_hand_calculation():
    distribution = Categorical(torch.tensor([[0.0, math.log(3.0)]]).repeat(2, 1))
    torch.testing.assert_close(distribution.log_prob(torch.tensor([0, 1])), torch.tensor([0.25, 0.75]).log())
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert distribution.entropy().tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_two_way_equals_categorical_of_two():
    logits = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)) * 4
    two, many = TwoWay(logits[:, 1] - logits[:, 0]), Categorical(logits)
    action = torch.arange(400) % 2
    uniform = GRID[:: NUM_UNIFORMS // 400][:400, None]
    torch.testing.assert_close(two.log_prob(action), many.log_prob(action), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(two.entropy(), many.entropy(), rtol=1e-4, atol=1e-6)
    assert torch.equal(two.sample(uniform), many.sample(uniform))
    assert torch.equal(two.mode(), many.mode())


@pytest.mark.parametrize("make", [lambda x: TwoWay(x[:, 0]), Bernoulli], ids=["two_way", "bernoulli"])
def test_logistic_log_prob_of_huge_logits_is_finite_with_finite_gradient(make):
    logit = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    distribution = make(logit)
    action = torch.zeros(2, dtype=torch.int64) if isinstance(distribution, TwoWay) else torch.zeros(2, 1).long()
    log_prob, entropy = distribution.log_prob(action), distribution.entropy()
    assert log_prob.tolist() == [-200.0, 0.0]
    (log_prob + entropy).sum().backward()
    assert torch.isfinite(logit.grad).all()
    assert entropy.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_multi_categorical_with_missing_values_equals_separate_choices():
    first, second = torch.randn(6, 2), torch.randn(6, 4)
    padded = torch.full((6, 2, 4), -1e30)
    padded[:, 0, :2], padded[:, 1] = first, second
    padded.requires_grad_()
    distribution = MultiCategorical(padded)
    action = torch.tensor([[0, 3], [1, 2], [1, 0], [0, 0], [1, 3], [0, 1]])
    a, b = Categorical(first), Categorical(second)
    torch.testing.assert_close(distribution.log_prob(action), a.log_prob(action[:, 0]) + b.log_prob(action[:, 1]))
    torch.testing.assert_close(distribution.entropy(), a.entropy() + b.entropy())
    distribution.entropy().sum().backward()
    assert torch.isfinite(padded.grad).all()


def test_bernoulli_sample_over_a_grid_has_the_probabilities():
    logits = torch.tensor([0.2, 0.9]).logit().expand(NUM_UNIFORMS, 2)
    action = Bernoulli(logits).sample(GRID[:, None].expand(-1, 2))
    torch.testing.assert_close(action.float().mean(0), torch.tensor([0.2, 0.9]), rtol=0, atol=1e-4)


def test_gaussian_unclipped_sample_has_its_own_log_prob():
    """Case N10."""
    distribution = DiagonalGaussian(torch.zeros(1, 1), torch.zeros(1))
    assert distribution.log_prob(torch.tensor([[1.7]])).item() == pytest.approx(-2.3639385, abs=1e-6)
    ratio = (distribution.log_prob(torch.tensor([[1.7]])) - (-2.3639385)).exp()
    assert ratio.item() == pytest.approx(1.0, abs=1e-6)


def test_gaussian_sample_over_a_grid_is_normal():
    mean, log_std = torch.full((NUM_UNIFORMS, 1), 3.0), torch.tensor([math.log(2.0)])
    sample = DiagonalGaussian(mean, log_std).sample(GRID[:, None])
    assert sample.mean().item() == pytest.approx(3.0, abs=1e-3)
    assert sample.std().item() == pytest.approx(2.0, abs=1e-2)
    median = sample[NUM_UNIFORMS // 2 - 1 : NUM_UNIFORMS // 2 + 1].mean()
    assert median.item() == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("uniform", [SMALLEST, LARGEST])
def test_gaussians_sample_at_the_ends_is_finite_and_inside(uniform):
    mean = torch.tensor([[-9.0], [0.0], [9.0]])
    for distribution in (
        DiagonalGaussian(mean, torch.zeros(1)),
        SquashedGaussian(mean, torch.ones(1), torch.zeros(1)),
    ):
        action = distribution.sample(torch.full((3, 1), uniform))
        assert torch.isfinite(action).all()
        assert torch.isfinite(distribution.log_prob(action)).all()
    assert (action.abs() < 1).all()


def test_squashed_gaussian_log_prob_is_of_the_env_action():
    """Case N09."""
    distribution = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1), torch.tensor([2.0]).log())
    stored = torch.tanh(torch.tensor([[0.5]]))
    assert distribution.log_prob(stored).item() == pytest.approx(-1.4968567, abs=1e-6)


def test_log_tanh_slope_far_out_is_exact_with_finite_gradient():
    """Case N09."""
    u = torch.tensor([10.0, -10.0, 60.0], requires_grad=True)
    slope = log_tanh_slope(u)
    assert slope[:2].tolist() == pytest.approx([-18.613706] * 2, abs=1e-5)
    slope.sum().backward()
    assert u.grad.tolist() == pytest.approx([-2.0, 2.0, -2.0], abs=1e-5)


def test_squashed_gaussian_log_prob_of_a_saturated_action_has_finite_gradient():
    """Case N09."""
    mean = torch.tensor([[12.0]], requires_grad=True)
    distribution = SquashedGaussian(mean, torch.zeros(1), torch.zeros(1))
    log_prob = distribution.log_prob(torch.tensor([[1.0]]))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(mean.grad).all()


def test_squashed_gaussian_density_integrates_to_one_over_the_env_box():
    distribution = SquashedGaussian(torch.tensor([[0.3]]), torch.tensor([-0.2]), torch.tensor([2.0]).log())
    stored = torch.linspace(-1 + 1e-5, 1 - 1e-5, 40_001)[:, None]
    density = distribution.log_prob(stored).exp().double()
    assert torch.trapezoid(density, 2 * stored[:, 0].double()).item() == pytest.approx(1.0, abs=1e-3)


def test_squashed_gaussian_entropy_equals_minus_the_mean_log_prob():
    mean, log_std, log_half_width = torch.tensor([[0.4, -1.0]]), torch.tensor([-0.5, 0.1]), torch.tensor([0.0, 0.7])
    rng = np.random.default_rng(0)
    uniform = torch.from_numpy(rng.uniform(size=(200_000, 2)).astype(np.float32)).clamp(SMALLEST, LARGEST)
    many = SquashedGaussian(mean.expand(200_000, 2), log_std, log_half_width)
    estimate = -many.log_prob(many.sample(uniform)).mean()
    exact = SquashedGaussian(mean, log_std, log_half_width).entropy()
    assert exact.item() == pytest.approx(estimate.item(), abs=0.01)


@pytest.mark.parametrize("kind", ["two_way", "categorical", "multi", "bernoulli", "gaussian", "squashed"])
def test_sample_of_a_row_does_not_depend_on_its_batch(kind):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(64, 6, generator=generator)
    uniform = torch.rand(64, 6, generator=generator).clamp(SMALLEST, LARGEST)
    make = {
        "two_way": lambda i: TwoWay(x[i, 0]),
        "categorical": lambda i: Categorical(x[i]),
        "multi": lambda i: MultiCategorical(x[i].view(-1, 2, 3)),
        "bernoulli": lambda i: Bernoulli(x[i]),
        "gaussian": lambda i: DiagonalGaussian(x[i], torch.zeros(6)),
        "squashed": lambda i: SquashedGaussian(x[i], torch.zeros(6), torch.zeros(6)),
    }[kind]
    noise = uniform[:, :1] if kind in ("two_way", "categorical") else uniform[:, :2] if kind == "multi" else uniform
    everything, rows = slice(None), torch.tensor([33, 2, 60])
    torch.testing.assert_close(make(everything).sample(noise)[rows], make(rows).sample(noise[rows]))
