"""Adam: step by step against torch's own."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.adam import FlatAdam

ONE, ZERO = torch.ones(()), torch.zeros(())


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_step_equals_torch_adam_at_every_step(eps, betas):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(101, generator=generator)
    flat, reference = start.clone(), torch.nn.Parameter(start.clone())
    ours = FlatAdam(flat, *betas, eps)
    theirs = torch.optim.Adam([reference], lr=1.0, betas=betas, eps=eps)
    for step in range(30):
        gradient = torch.randn(101, generator=generator) * 10.0 ** (step % 5 - 2)
        learning_rate = 1e-3 * (1 + step % 3)
        theirs.param_groups[0]["lr"] = learning_rate
        reference.grad = gradient.clone()
        theirs.step()
        ours.step(gradient, learning_rate, ONE, ZERO)
        torch.testing.assert_close(flat, reference.detach(), rtol=1e-5, atol=1e-6)


def test_step_divides_the_gradient_by_its_scale():
    one, two = torch.zeros(3), torch.zeros(3)
    gradient = torch.tensor([1.0, -2.0, 3.0])
    FlatAdam(one, eps=1.0).step(gradient.clone(), 0.1, torch.tensor(4.0), ZERO)
    FlatAdam(two, eps=1.0).step(gradient / 4, 0.1, ONE, ZERO)
    assert torch.equal(one, two)


def test_step_that_is_skipped_changes_nothing():
    """Case N07."""
    flat = torch.zeros(3)
    adam = FlatAdam(flat)
    adam.step(torch.ones(3), 0.1, ONE, ZERO)
    before = {"flat": flat.clone(), **adam.state_dict()}
    adam.step(torch.full((3,), float("nan")), 0.1, torch.tensor(float("nan")), ONE)
    after = {"flat": flat, **adam.state_dict()}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_state_dict_restored_continues_the_same_path():
    """Case C08."""
    gradients = [torch.randn(5) for _ in range(6)]
    straight, resumed = torch.zeros(5), torch.zeros(5)
    adam = FlatAdam(straight)
    for gradient in gradients:
        adam.step(gradient.clone(), 0.1, ONE, ZERO)
    first = FlatAdam(resumed)
    for gradient in gradients[:3]:
        first.step(gradient.clone(), 0.1, ONE, ZERO)
    second = FlatAdam(resumed)
    second.load_state_dict(first.state_dict())
    for gradient in gradients[3:]:
        second.step(gradient.clone(), 0.1, ONE, ZERO)
    assert torch.equal(straight, resumed)
