"""Observation statistics."""

from __future__ import annotations

import pytest
import torch

from rltrain.models.normaliser import ObsNormaliser


def test_update_in_pieces_equals_the_statistics_of_all_rows():
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 5 + 1000
    normaliser = ObsNormaliser((3,))
    for piece in (x[:1], x[1:7], x[7:7], x[7:]):
        normaliser.update(piece)
    torch.testing.assert_close(normaliser.mean, x.double().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(normaliser.variance, x.double().var(0, correction=0), rtol=1e-10, atol=0)
    assert normaliser.count.item() == 1000


def test_forward_is_the_identity_before_any_update_and_standardises_after():
    normaliser = ObsNormaliser((2,))
    x = torch.tensor([[1.0, -2.0], [3.0, 6.0]])
    torch.testing.assert_close(normaliser(x), x)
    normaliser.update(x)
    torch.testing.assert_close(normaliser(x), torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))


def test_forward_clips_at_ten():
    normaliser = ObsNormaliser((1,))
    normaliser.update(torch.tensor([[-1.0], [1.0]]))
    assert normaliser(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]


def test_forward_of_large_float64_observations_keeps_small_differences():
    x = torch.tensor([[1e9], [1e9 + 2]], dtype=torch.float64)
    normaliser = ObsNormaliser((1,))
    normaliser.update(x)
    assert normaliser(x).flatten().tolist() == pytest.approx([-1.0, 1.0])
    assert normaliser(x).dtype == torch.float32


def test_forward_never_changes_the_statistics():
    """Case C06."""
    normaliser = ObsNormaliser((2,))
    normaliser.update(torch.randn(10, 2))
    before = {name: buffer.clone() for name, buffer in normaliser.named_buffers()}
    normaliser(torch.randn(50, 2) * 100)
    assert all(torch.equal(buffer, before[name]) for name, buffer in normaliser.named_buffers())
