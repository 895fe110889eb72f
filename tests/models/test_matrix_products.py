"""Matrix products by either library give the same."""

from __future__ import annotations

import pytest
import torch

from rltrain.models import matrix_products, native_layers
from rltrain.models.matrix_products import linear, linear_relu, product
from rltrain.models.mlp import DenseStack, run_stacks


@pytest.fixture(params=[True, False], ids=["onednn", "blas"])
def one_dnn(request, monkeypatch):
    """Let all products of any size come from one library."""
    if request.param and not matrix_products._HAS_ONEDNN:
        pytest.skip("this CPU or this torch does without oneDNN")
    monkeypatch.setattr(matrix_products, "_HAS_ONEDNN", request.param)
    monkeypatch.setattr(matrix_products, "_WIDE_ELEMENTS", 1)
    monkeypatch.setattr(matrix_products, "_LONG_PRODUCT", 1)


@pytest.mark.usefixtures("one_dnn")
@pytest.mark.parametrize(("b", "n", "m"), [(1, 1, 1), (7, 3, 5), (64, 17, 256), (256, 256, 12), (33, 300, 400)])
def test_products_equal_those_in_float64(b, n, m):
    x, weight, bias = torch.randn(b, n), torch.randn(m, n), torch.randn(m)
    exact = (x.double() @ weight.double().t() + bias.double()).float()
    tolerance = {"rtol": 0, "atol": 1e-5 * n**0.5 + 1e-5}
    torch.testing.assert_close(linear(x, weight, bias), exact, **tolerance)
    torch.testing.assert_close(linear_relu(x, weight, bias), exact.relu(), **tolerance)
    no_bias = exact - bias
    torch.testing.assert_close(product(x, weight.t()), no_bias, **tolerance)
    torch.testing.assert_close(product(x.t().contiguous().t(), weight.t()), no_bias, **tolerance)


@pytest.mark.usefixtures("one_dnn")
def test_products_of_no_rows_are_empty():
    assert linear(torch.zeros(0, 3), torch.randn(4, 3), torch.randn(4)).shape == (0, 4)
    assert product(torch.zeros(0, 3), torch.randn(3, 4)).shape == (0, 4)


@pytest.mark.usefixtures("one_dnn")
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_dense_stack_of_wide_layers_equals_autograd(activation, monkeypatch):
    monkeypatch.setattr(native_layers, "LARGEST_LAYER", 0)
    num_rows = 40
    stack = DenseStack((20, 130, 140, 3), activation)
    stack.initialize(torch.Generator().manual_seed(0))
    x, gradient = torch.randn(num_rows, 20), torch.randn(num_rows, 3)
    found = []
    for run in (lambda x: stack(x), lambda x: _traced(stack, x)):
        rows = x.clone().requires_grad_()
        stack.zero_grad()
        y = run(rows)
        y.backward(gradient)
        found.append([y.detach(), rows.grad, *(p.grad.clone() for p in stack.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * num_rows**0.5)


def _traced(stack, x):
    from rltrain.models.mlp import _traceable

    return _traceable(stack, x, False)


@pytest.mark.parametrize("is_traced", [False, True])
def test_frozen_stacks_give_gradients_of_their_inputs_only(is_traced, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: is_traced)
    stacks = [DenseStack((4, 8, 1), "relu") for _ in range(2)]
    for stack in stacks:
        stack.initialize(torch.Generator().manual_seed(0))
    grads = []
    for are_frozen in (False, True):
        x = torch.ones(3, 4, requires_grad=True)
        first, second = run_stacks(stacks, (x, x), are_frozen)
        (first + 2 * second).sum().backward()
        grads.append(x.grad)
        touched = [p.grad is not None for stack in stacks for p in stack.parameters()]
        assert touched == [not are_frozen] * 8
        for stack in stacks:
            stack.zero_grad()
    torch.testing.assert_close(*grads)
