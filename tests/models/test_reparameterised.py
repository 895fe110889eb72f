"""Squashed Gaussian samples with a gradient: values and the written-out chain rule against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from rltrain.models import reparameterised
from rltrain.models.distributions import SquashedGaussian
from rltrain.models.reparameterised import draw_squashed, split_outputs


def outputs_and_noise(num_rows=50, num_components=3, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(num_rows, 2 * num_components, generator=generator) * scale
    return outputs, torch.randn(num_rows, num_components, generator=generator)


def test_draw_has_the_density_of_its_distribution_in_policy_units():
    outputs, normal = outputs_and_noise(scale=0.3)
    action, log_prob = draw_squashed(outputs, normal)
    distribution = SquashedGaussian(*split_outputs(outputs), torch.zeros(3))
    torch.testing.assert_close(log_prob, distribution.log_prob(action), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(action, distribution.sample(torch.special.ndtr(normal)), rtol=0, atol=1e-4)


def test_draw_of_a_known_value():
    """Case N09: mu 0, sigma 1, u = 0.5 on Box[-2, 2] has -1.4968567, which is less by log 2."""
    _, log_prob = draw_squashed(torch.zeros(1, 2), torch.tensor([[0.5]]))
    assert log_prob.item() - math.log(2.0) == pytest.approx(-1.4968567, abs=1e-6)


def test_draw_far_out_is_exact_with_finite_gradient():
    """Case N09: log(1 - tanh(10)^2) is -18.613706."""
    outputs = torch.tensor([[10.0, 0.0]], requires_grad=True)
    action, log_prob = draw_squashed(outputs, torch.zeros(1, 1))
    expected = -0.5 * math.log(2 * math.pi) + 18.613706
    assert log_prob.item() == pytest.approx(expected, abs=1e-5)
    (action + log_prob).sum().backward()
    assert outputs.grad[0].tolist() == pytest.approx([2.0, -1.0], abs=1e-6)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_gradients_equal_autograd(scale):
    outputs, normal = outputs_and_noise(scale=scale)
    outputs = outputs.double()
    outputs[0, 3], outputs[1, 4] = 2.5, -21.0  # beyond the limits of the logarithm
    grads = []
    for draw in (draw_squashed, _plain):
        x = outputs.float().requires_grad_() if draw is draw_squashed else outputs.clone().requires_grad_()
        action, log_prob = draw(x, normal.to(x.dtype))
        (action * torch.arange(3.0) + log_prob[:, None] * 0.7).sum().backward()
        grads.append(x.grad.double())
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert grads[0][0, 3] == grads[0][1, 4] == 0


def _plain(outputs, normal):
    mean, log_std = outputs.chunk(2, 1)
    log_std = log_std.clamp(-20, 2)
    u = mean + log_std.exp() * normal
    log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(u)
    slope = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
    return torch.tanh(u), (log_prob - slope).sum(1)


def test_gradient_of_one_result_alone():
    for pick in (0, 1):
        outputs, normal = outputs_and_noise()
        grads = []
        for draw in (draw_squashed, _plain):
            x = outputs.clone().requires_grad_()
            draw(x, normal)[pick].sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_draw_of_bfloat16_outputs_is_float32_with_a_gradient_of_their_own_kind():
    outputs, normal = outputs_and_noise()
    x = outputs.bfloat16().requires_grad_()
    action, log_prob = draw_squashed(x, normal)
    assert action.dtype == log_prob.dtype == torch.float32
    (action.sum() + log_prob.sum()).backward()
    assert x.grad.dtype == torch.bfloat16


def test_traced_form_is_the_same(monkeypatch):
    outputs, normal = outputs_and_noise()
    written_out = draw_squashed(outputs, normal)
    monkeypatch.setattr(reparameterised.torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(draw_squashed(outputs, normal), written_out)
