"""Observation leaves to features."""

from __future__ import annotations

import pytest
import torch

from rltrain.errors import ConfigError
from rltrain.fields import LeafSpec
from rltrain.models.cnn import ImageEncoder
from rltrain.models.obs_encoder import FlatEncoder, ObsEncoder


def test_discrete_obs_with_start_sets_the_shifted_position():
    """Case E08."""
    encoder = ObsEncoder((LeafSpec("obs", "discrete", (), "int64", nvec=(19,), start=(2,)),), "auto")
    encoded = encoder({"obs": torch.tensor([20, 2])})
    assert encoded.shape == (2, 19)
    assert encoded.argmax(1).tolist() == [18, 0]
    assert encoded.sum(1).tolist() == [1.0, 1.0]


def test_multi_discrete_obs_with_start_concatenates_one_hots():
    """Case E08."""
    encoder = ObsEncoder((LeafSpec("obs", "multi_discrete", (2,), "int64", nvec=(2, 3), start=(1, -1)),), "auto")
    assert encoder({"obs": torch.tensor([[2, -1]])}).tolist() == [[0, 1, 1, 0, 0]]


def test_two_dimensional_multi_discrete_obs_is_flattened():
    encoder = ObsEncoder(
        (LeafSpec("obs", "multi_discrete", (2, 2), "int64", nvec=(2, 2, 2, 2), start=(0, 0, 0, 0)),), "auto"
    )
    assert encoder({"obs": torch.tensor([[[1, 0], [0, 1]]])}).tolist() == [[0, 1, 1, 0, 1, 0, 0, 1]]


def test_multi_binary_obs_becomes_floats():
    encoder = ObsEncoder((LeafSpec("obs", "multi_binary", (3,), "int8"),), "auto")
    encoded = encoder({"obs": torch.tensor([[1, 0, 1]], dtype=torch.int8)})
    assert encoded.dtype == torch.float32
    assert encoded.tolist() == [[1, 0, 1]]


def test_byte_vector_obs_is_divided_by_255():
    encoder = ObsEncoder((LeafSpec("obs", "box", (2,), "uint8"),), "auto")
    assert encoder({"obs": torch.tensor([[255, 0]], dtype=torch.uint8)}).tolist() == [[1.0, 0.0]]


def test_nested_obs_is_concatenated_in_the_order_of_the_spec():
    leaves = (
        LeafSpec("obs.b", "box", (2,), "float64"),
        LeafSpec("obs.a.0", "discrete", (), "int64", nvec=(2,), start=(0,)),
        LeafSpec("obs.image", "box", (36, 36, 3), "uint8"),
    )
    encoder = ObsEncoder(leaves, "auto")
    encoder.initialize(torch.Generator().manual_seed(0))
    encoded = encoder(
        {
            "obs.image": torch.zeros(1, 36, 36, 3, dtype=torch.uint8),
            "obs.a.0": torch.tensor([1]),
            "obs.b": torch.tensor([[3.0, 4.0]], dtype=torch.float64),
        }
    )
    assert encoded.dtype == torch.float32
    assert encoded.shape == (1, 2 + 2 + 512)
    assert encoded[0, :4].tolist() == [3.0, 4.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((84, 84), "auto", "nature"),
        ((10, 10, 4), "auto", "impala"),
        ((4, 4), "auto", "flat"),
        ((84, 84), "impala_cnn", "impala"),
        ((84, 84), "mlp", "flat"),
    ],
)
def test_image_obs_gets_the_network_that_fits(shape, kind, expected):
    (encoder,) = ObsEncoder((LeafSpec("obs", "box", shape, "uint8"),), kind).encoders
    if expected == "flat":
        assert isinstance(encoder, FlatEncoder)
    else:
        assert isinstance(encoder, ImageEncoder)
        assert encoder.num_outputs == {"nature": 512, "impala": 256}[expected]


def test_cnn_without_an_image_is_refused():
    with pytest.raises(ConfigError, match=r"model.kind = 'nature_cnn' needs an image"):
        ObsEncoder((LeafSpec("obs", "box", (4,), "float32"),), "nature_cnn")
