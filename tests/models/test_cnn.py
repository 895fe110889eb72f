"""Image layouts and convolutional networks."""

from __future__ import annotations

import pytest
import torch

from rltrain.errors import ConfigError
from rltrain.models.cnn import ImageEncoder, ToChannelsFirst


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 6), (1, 5, 6)),
        ((5, 6, 3), (3, 5, 6)),
        ((3, 5, 6), (3, 5, 6)),
        ((4, 5, 6), (4, 5, 6)),
        ((4, 5, 6, 3), (12, 5, 6)),
        ((2, 3, 5, 6), (6, 5, 6)),
        ((6, 6, 6), (6, 6, 6)),
    ],
)
def test_layout_of_each_shape_is_channels_first(shape, expected):
    layout = ToChannelsFirst(shape)
    assert (layout.num_channels, layout.height, layout.width) == expected
    assert layout(torch.zeros(2, *shape)).shape == (2, *expected)


def test_layout_keeps_every_pixel_in_place():
    image = torch.arange(2 * 4 * 5 * 6 * 3).view(2, 4, 5, 6, 3)
    moved = ToChannelsFirst((4, 5, 6, 3))(image)
    for stack, row, column, channel in ((0, 0, 0, 0), (3, 4, 5, 2), (1, 2, 3, 1)):
        assert moved[1, stack * 3 + channel, row, column] == image[1, stack, row, column, channel]


def test_layout_of_a_square_cube_takes_the_last_axis_as_channels():
    image = torch.arange(27).view(1, 3, 3, 3)
    assert torch.equal(ToChannelsFirst((3, 3, 3))(image), image.permute(0, 3, 1, 2))


@pytest.mark.parametrize(("kind", "num_parameters"), [("nature_cnn", 1_684_128), ("impala_cnn", 1_089_232)])
def test_networks_have_the_published_size(kind, num_parameters):
    encoder = ImageEncoder(kind, (4, 84, 84), True, "obs")
    assert sum(p.numel() for p in encoder.parameters()) == num_parameters


@pytest.mark.parametrize(("kind", "smallest"), [("nature_cnn", 36), ("impala_cnn", 8)])
def test_smallest_image_works_and_a_smaller_one_is_refused(kind, smallest):
    encoder = ImageEncoder(kind, (smallest, smallest), True, "obs")
    encoder.initialize(torch.Generator().manual_seed(0))
    pixels = torch.randint(0, 256, (2, smallest, smallest), dtype=torch.uint8)
    features = encoder(pixels)
    assert features.shape == (2, encoder.num_outputs)
    assert features.isfinite().all()
    with pytest.raises(ConfigError, match=f"at least {smallest} x {smallest} pixels"):
        ImageEncoder(kind, (smallest, smallest - 1), True, "obs")


@pytest.mark.parametrize("kind", ["nature_cnn", "impala_cnn"])
def test_features_start_at_the_scale_of_the_pixels(kind):
    encoder = ImageEncoder(kind, (64, 64, 3), True, "obs")
    encoder.initialize(torch.Generator().manual_seed(0))
    pixels = torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)
    assert 0.01 < encoder(pixels).square().mean().sqrt() < 10
