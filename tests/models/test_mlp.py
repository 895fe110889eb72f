"""Fully connected layers: the written-out chain rule against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rltrain.models import native_layers
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


@pytest.fixture(params=[16, 8, 4, None], ids=["avx512", "avx2", "any_cpu", "torch"])
def way(request, monkeypatch):
    """Compute layers in C, with vectors of at most so many floats, or with torch's operations."""
    if request.param is None:
        monkeypatch.setattr(native_layers, "LARGEST_LAYER", 0)
    else:
        monkeypatch.setattr(native_layers, "WIDEST_VECTORS", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("activate_last", [False, True])
@pytest.mark.parametrize("sizes", [(3, 8, 6, 2), (9, 4), (4, 5, 1), (20, 70, 130, 33)])
@pytest.mark.parametrize("num_rows", [17, 97, 290])
def test_dense_stack_forward_and_gradients_equal_autograd(sizes, activation, activate_last, num_rows):
    stack = made(sizes, activation, activate_last)
    reference = plain(stack)
    x = torch.randn(num_rows, sizes[0], generator=torch.Generator().manual_seed(2))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    grad = torch.randn(num_rows, sizes[-1], generator=torch.Generator().manual_seed(3))
    ours, theirs = stack(a), reference(b)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 * max(sizes) ** 0.5)
    kept = grad.clone()
    ours.backward(grad)
    theirs.backward(kept)
    assert torch.equal(grad, kept), "the gradient that was handed in must not be overwritten"
    torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=5e-6 * max(sizes) ** 0.5)
    for p, q in zip(stack.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-5 * num_rows**0.5)
    with torch.no_grad():
        assert torch.equal(stack(x), ours), "the result is the same where nothing is kept"


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("activation", LAYERS)
def test_activations_of_any_sum_are_exact_to_float32_and_show_nan(activation):
    stack = DenseStack((1, 1), activation, activate_last=True)
    stack.get_parameter("weight_0").data.fill_(1.0)
    far = torch.tensor([0.0, 1e-6, -1e-6, 88.0, -88.0, 200.0, -200.0, 1e30])
    x = torch.cat([torch.linspace(-20, 20, 40001), far])
    x = x[:, None].requires_grad_()
    y = stack(x)
    y.sum().backward()
    exact = x.detach().double().requires_grad_()
    expected = LAYERS[activation]()(exact)
    expected.sum().backward()
    torch.testing.assert_close(y.double(), expected, rtol=5e-7, atol=2e-7)
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=5e-7, atol=2e-6)
    assert stack(torch.tensor([[torch.nan]])).isnan().all(), "a policy that diverged must not look sound"


@pytest.mark.parametrize("vectors", [16, 8, 4])
def test_rows_of_native_layers_do_not_depend_on_those_beside_them(vectors, monkeypatch):
    monkeypatch.setattr(native_layers, "WIDEST_VECTORS", vectors)
    stack = made((5, 70, 64, 3), "tanh")
    x = torch.randn(400, 5)
    with torch.no_grad():
        together = stack(x)
        for size in (1, 7, 96, 131):
            assert torch.equal(torch.cat([stack(part) for part in x.split(size)]), together)


def test_native_layers_of_two_threads_equal_those_of_one_and_themselves():
    stack, x, threads = made((5, 64, 64, 3), "tanh"), torch.randn(1000, 5), torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 2, 2):
            torch.set_num_threads(num_threads)
            stack.zero_grad()
            y = stack(x)
            y.square().sum().backward()
            found.append([y.detach(), *(p.grad.clone() for p in stack.parameters())])
    finally:
        torch.set_num_threads(threads)
    one, two, again = found
    assert torch.equal(one[0], two[0])
    assert all(torch.equal(a, b) for a, b in zip(two, again, strict=True)), "sums are made in the order of the rows"
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("way")
def test_dense_stack_takes_rows_that_lie_apart_turned_or_missing():
    stack, wide = made((6, 20, 3), "relu"), torch.randn(30, 40)
    for x in (wide[:, 3:9], wide.t()[:, 4:10], wide[::2, 1:7], wide[:0, :6], wide[:1, :6].expand(9, 6)):
        expected = plain(stack)(x)
        torch.testing.assert_close(stack(x), expected, rtol=0, atol=1e-5)
        stack.zero_grad()
        stack(x).sum().backward()
        expected.sum().backward()
        assert stack.get_parameter("weight_0").grad is not None
    stack.zero_grad()
    stack(wide[:0, :6]).sum().backward()
    assert not stack.get_parameter("weight_0").grad.any(), "the gradient of no rows is zero"


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


def test_gradients_of_very_many_rows_keep_their_digits():
    """One long sum of float32 loses what is small beside it."""
    stack, x = made((2, 20), "relu"), torch.rand(200_000, 2, generator=torch.Generator().manual_seed(4))
    exact = plain(stack).double()
    stack(x).sum().backward()
    exact(x.double()).sum().backward()
    for p, q in zip(stack.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(p.grad.double(), q.grad, rtol=1e-6, atol=0)


def test_input_of_another_width_is_refused():
    with pytest.raises(RuntimeError, match="shape"):
        made((4, 8, 2), "tanh")(torch.zeros(3, 2))
