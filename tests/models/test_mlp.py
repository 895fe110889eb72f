"""Fully connected layers: the written-out chain rule against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rltrain.models import mlp
from rltrain.models.mlp import DenseStack, run_stacks

LAYERS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def plain(stack: DenseStack) -> nn.Sequential:
    """Build the same network of torch's own layers."""
    modules: list[nn.Module] = []
    for i in range(stack.num_layers):
        weight, bias = stack.get_parameter(f"weight_{i}"), stack.get_parameter(f"bias_{i}")
        linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        linear.weight.data, linear.bias.data = weight.data.clone(), bias.data.clone()
        modules += [linear] if i >= stack.num_activations else [linear, LAYERS[stack.activation]()]
    return nn.Sequential(*modules)


def made(sizes, activation, activate_last=False) -> DenseStack:
    stack = DenseStack(sizes, activation, activate_last)
    stack.initialize(torch.Generator().manual_seed(1))
    for i in range(stack.num_layers):
        stack.get_parameter(f"bias_{i}").data.normal_(generator=torch.Generator().manual_seed(i))
    return stack


@pytest.mark.parametrize("rows_per_block", [512, 5])
@pytest.mark.parametrize("has_fast_tanh", [False, True])
@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("activate_last", [False, True])
@pytest.mark.parametrize("sizes", [(3, 8, 6, 2), (9, 4), (4, 5, 1)])
def test_dense_stack_forward_and_gradients_equal_autograd(
    sizes, activation, activate_last, has_fast_tanh, rows_per_block, monkeypatch
):
    monkeypatch.setattr(mlp, "_HAS_FAST_TANH", has_fast_tanh)
    monkeypatch.setattr(mlp, "_SMALLEST_BLOCK_ROWS", rows_per_block)
    monkeypatch.setattr(mlp, "_BLOCK_ELEMENTS", 1)
    stack = made(sizes, activation, activate_last)
    reference = plain(stack)
    x = torch.randn(17, sizes[0], generator=torch.Generator().manual_seed(2))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    grad = torch.randn(17, sizes[-1], generator=torch.Generator().manual_seed(3))
    ours, theirs = stack(a), reference(b)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    kept = grad.clone()
    ours.backward(grad)
    theirs.backward(kept)
    assert torch.equal(grad, kept), "the gradient that was handed in must not be overwritten"
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=5e-6)
    for p, q in zip(stack.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-5)


def test_run_stacks_two_stacks_with_different_rows_equals_each_alone():
    one, two = made((4, 8, 2), "tanh"), made((4, 8, 8, 1), "tanh")
    x = torch.randn(10, 4)
    outputs = run_stacks((one, two), (x[:6], x))
    torch.testing.assert_close(outputs[0], one(x[:6]))
    torch.testing.assert_close(outputs[1], two(x))
    (outputs[0].sum() + outputs[1].square().sum()).backward()
    reference = plain(two)
    reference(x).square().sum().backward()
    for p, q in zip(two.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_dense_stack_tanh_of_extreme_inputs_saturates_exactly():
    stack = DenseStack((1, 1), "tanh", activate_last=True)
    stack.get_parameter("weight_0").data.fill_(1.0)
    x = torch.tensor([[-200.0], [-3.0], [0.0], [1e-3], [3.0], [200.0]])
    torch.testing.assert_close(stack(x), torch.tanh(x), rtol=0, atol=2e-7)


def test_dense_stack_of_one_width_is_the_identity():
    x = torch.randn(3, 7)
    assert DenseStack((7,), "relu")(x) is x


def test_initialize_makes_orthogonal_rows_and_zero_biases():
    stack = DenseStack((4, 16, 3), "relu")
    stack.initialize(torch.Generator().manual_seed(0), last_gain=0.01)
    first, last = stack.get_parameter("weight_0"), stack.get_parameter("weight_1")
    torch.testing.assert_close(first.t() @ first, 2 * torch.eye(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(last @ last.t(), 1e-4 * torch.eye(3), rtol=0, atol=1e-8)
    assert not stack.get_parameter("bias_0").any()


def test_dense_stack_under_autocast_computes_in_bfloat16_with_float32_gradients():
    stack = made((4, 8, 2), "tanh")
    with torch.autocast("cpu", torch.bfloat16):
        y = stack(torch.ones(3, 4))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert stack.get_parameter("weight_0").grad.dtype == torch.float32
