"""Flat memory: parameters, gradients and buffers are views of it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from rltrain.algos.flat_parameters import FlatParameters


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    model.register_buffer("statistics", torch.randn(3, dtype=torch.float64))
    model.register_buffer("count", torch.tensor(7))
    model.register_buffer("constant", torch.ones(2), persistent=False)
    return model


def test_values_are_kept_and_every_tensor_is_an_aligned_view():
    reference, model = small_model(), small_model()
    flat = FlatParameters(model)
    start = flat.host_bytes.ctypes.data
    for (name, expected), tensor in zip(
        reference.state_dict().items(), model.state_dict().values(), strict=True
    ):
        assert torch.equal(expected, tensor), name
        offset = tensor.data_ptr() - start
        assert 0 <= offset < flat.weight_bytes
        assert offset % 64 == 0
    assert not start <= model.constant.data_ptr() < start + flat.weight_bytes


def test_gradients_accumulate_in_the_flat_vector_and_zero_with_it():
    reference, model = small_model(), small_model()
    flat = FlatParameters(model)
    x = torch.randn(4, 3)
    for _ in range(2):
        flat.grad.zero_()
        model(x).sum().backward()
    reference(x).sum().backward()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
        assert p.grad.untyped_storage().data_ptr() == flat.grad.untyped_storage().data_ptr()
    expected = torch.cat([q.grad.flatten() for q in reference.parameters()]).norm()
    torch.testing.assert_close(flat.grad.norm(), expected)


def test_publish_and_load_move_parameters_and_buffers_of_all_types():
    source, target = small_model(1), small_model(2)
    sent, received = FlatParameters(source), FlatParameters(target)
    assert sent.hash() != received.hash()
    weights = sent.publish_view()
    assert weights.dtype == np.uint8
    assert weights.shape == (sent.weight_bytes,)
    received.load(weights.copy())
    for a, b in zip(source.state_dict().values(), target.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    x = torch.randn(2, 3)
    assert torch.equal(source(x), target(x))
    assert sent.hash() == received.hash() == hashlib.sha256(weights.tobytes()).hexdigest()


def test_publish_view_on_the_cpu_shows_later_changes_without_a_copy():
    model = small_model()
    flat = FlatParameters(model)
    view = flat.publish_view()
    with torch.no_grad():
        model.count.fill_(99)
        flat.flat.zero_()
    assert np.array_equal(view, flat.publish_view())
    assert not view[: flat.flat.numel() * 4].any()
    assert view[flat.flat.numel() * 4 :].any()


def test_load_of_its_own_view_changes_nothing():
    flat = FlatParameters(small_model())
    before = flat.hash()
    flat.load(flat.publish_view())
    assert flat.hash() == before


def test_load_of_another_size_is_refused():
    flat = FlatParameters(small_model())
    with pytest.raises(ValueError, match="bytes of weights for a model of"):
        flat.load(np.zeros(flat.weight_bytes - 1, np.uint8))


def test_parameters_that_are_not_float32_are_refused():
    with pytest.raises(ValueError, match=r"parameters must be float32: weight: torch\.float64"):
        FlatParameters(nn.Linear(1, 1, bias=False).double())
