"""Losses: golden values, and the written-out gradients against autograd."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos import losses


def test_clipped_surrogate_golden_values():
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]).log()
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 1.0])
    loss, gradient = losses.clipped_surrogate(log_ratio, advantage, 0.2)
    assert loss.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -1.1])
    assert gradient.tolist() == pytest.approx([0.0, 3.0, -1.0, 0.0, -1.1])


def test_clipped_surrogate_gradient_equals_autograd():
    generator = torch.Generator().manual_seed(0)
    log_prob = torch.randn(500, generator=generator, dtype=torch.float64).mul_(0.3).requires_grad_()
    advantage = torch.randn(500, generator=generator, dtype=torch.float64)
    ratio = log_prob.exp()
    torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).neg().sum().backward()
    _, gradient = losses.clipped_surrogate(log_prob.detach(), advantage, 0.2)
    torch.testing.assert_close(gradient, log_prob.grad)


def test_policy_gradient_equals_autograd_with_a_constant_clipped_ratio():
    log_prob = torch.tensor([-0.5, -1.0, -2.0], requires_grad=True)
    log_ratio, advantage = torch.tensor([0.5, 2.0, 1.0]).log(), torch.tensor([1.0, -3.0, 2.0])
    loss, gradient = losses.policy_gradient(log_prob.detach(), log_ratio, advantage, 1.0)
    (-torch.tensor([0.5, 1.0, 1.0]) * advantage * log_prob).sum().backward()
    torch.testing.assert_close(gradient, log_prob.grad)
    assert loss.tolist() == pytest.approx([0.25, -3.0, 4.0])


@pytest.mark.parametrize("clip_range", [None, 0.3])
def test_value_error_gradient_equals_autograd(clip_range):
    generator = torch.Generator().manual_seed(1)
    value, target, old = (torch.randn(500, generator=generator, dtype=torch.float64) for _ in range(3))
    value.requires_grad_()
    error = (value - target).square()
    if clip_range is not None:
        clipped = old + (value - old).clamp(-clip_range, clip_range)
        error = torch.maximum(error, (clipped - target).square())
    error.sum().backward()
    loss, gradient = losses.value_error(value.detach(), target, old, clip_range)
    torch.testing.assert_close(loss, error.detach())
    torch.testing.assert_close(gradient, value.grad)


def test_value_error_with_clip_stops_where_the_value_moved_beyond_it_towards_the_target():
    value, target, old = torch.tensor([2.0, 0.1]), torch.tensor([3.0, 3.0]), torch.tensor([0.0, 0.0])
    loss, gradient = losses.value_error(value, target, old, 0.2)
    assert loss.tolist() == pytest.approx([2.8**2, 2.9**2])
    assert gradient.tolist() == pytest.approx([0.0, -5.8])


def test_value_error_with_a_clip_that_never_binds_keeps_every_gradient():
    """In float32 the held value differs from the value by rounding; that is not a clip."""
    generator = torch.Generator().manual_seed(1)
    value, target, old = (torch.randn(5000, generator=generator) for _ in range(3))
    _, gradient = losses.value_error(value, target, old, 100.0)
    assert torch.equal(gradient, 2 * (value - target))


def test_normalised_ignores_rows_without_weight():
    valid = torch.tensor([True, True, True, False])
    weight = losses.mean_weights(valid)
    result = losses.normalised(torch.tensor([1.0, 2.0, 3.0, 1e6]), weight)
    assert result[:3].tolist() == pytest.approx([-1.2247449, 0.0, 1.2247449], abs=1e-6)


def test_normalised_of_equal_advantages_is_zero():
    weight = losses.mean_weights(torch.ones(4, dtype=torch.bool))
    assert losses.normalised(torch.full((4,), 0.25), weight).tolist() == [0.0] * 4


def test_mean_weights_without_a_valid_row_are_zero():
    assert losses.mean_weights(torch.zeros(3, dtype=torch.bool)).tolist() == [0.0] * 3
