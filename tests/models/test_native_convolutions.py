"""Convolutions in C: results and gradients against torch's in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rltrain.models import native_convolutions, native_layers
from rltrain.models.cnn import ImageEncoder

NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SHAPES = {
    "nature": (5, 4, 84, 84, NATURE),
    "pixels_left_over": (3, 3, 23, 31, ((16, 5, 2), (48, 3, 2), (80, 2, 1))),
    "kernel_no_multiple_of_stride": (3, 3, 40, 37, ((16, 5, 3), (32, 4, 3))),
    "more_images_than_a_run": (35, 1, 12, 12, ((16, 3, 1),)),
    "one_pixel": (1, 1, 3, 3, ((16, 3, 1),)),
    "wide": (4, 2, 17, 19, ((16, 3, 1), (112, 5, 4))),
}  # fmt: skip


@pytest.fixture(params=[16, 8, 4], ids=["avx512", "avx2", "any_cpu"])
def _vectors(request, monkeypatch):
    monkeypatch.setattr(native_layers, "WIDEST_VECTORS", request.param)


def made(channels: int, layers: tuple[tuple[int, int, int], ...]) -> list[nn.Conv2d]:
    generator = torch.Generator().manual_seed(0)
    convolutions = []
    for outputs, kernel, stride in layers:
        convolution = nn.Conv2d(channels, outputs, kernel, stride)
        for p in convolution.parameters():
            p.data.uniform_(-1, 1, generator=generator).mul_((channels * kernel * kernel) ** -0.5)
        convolutions.append(convolution)
        channels = outputs
    return convolutions


def pixels(count: int, channels: int, height: int, width: int, dtype: torch.dtype, is_channels_last: bool) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (count, height, width, channels) if is_channels_last else (count, channels, height, width)
    if dtype == torch.uint8:
        drawn = torch.randint(0, 256, shape, dtype=dtype, generator=generator)
    else:
        drawn = torch.randn(shape, generator=generator) * 100
    return drawn.permute(0, 3, 1, 2) if is_channels_last else drawn


def exact(x: Tensor, scale: float, convolutions: list[nn.Conv2d]) -> tuple[Tensor, list[Tensor]]:
    """The same in float64 by torch; the parameters are leaves of their own."""
    y, parameters = x.double() * scale, []
    for layer in convolutions:
        own = [p.detach().double().requires_grad_() for p in (layer.weight, layer.bias)]
        y = nn.functional.conv2d(y, *own, layer.stride).relu()
        parameters += own
    return y.flatten(1), parameters


@pytest.mark.usefixtures("_vectors")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("is_channels_last", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_results_and_gradients_equal_those_of_torch(shape, dtype, is_channels_last, num_threads):
    count, channels, height, width, layers = SHAPES[shape]
    convolutions, x = made(channels, layers), pixels(count, channels, height, width, dtype, is_channels_last)
    assert native_convolutions.fits(x, convolutions)
    threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        y = native_convolutions.run(x, 1 / 255, convolutions)
        grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
        y.backward(grad)
        with torch.no_grad():
            assert torch.equal(native_convolutions.run(x, 1 / 255, convolutions), y), "the same where nothing is kept"
    finally:
        torch.set_num_threads(threads)
    expected, parameters = exact(x, 1 / 255, convolutions)
    expected.backward(grad.double())
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=3e-6 * float(expected.detach().abs().max()))
    ours = [p.grad for layer in convolutions for p in (layer.weight, layer.bias)]
    for p, q in zip(ours, parameters, strict=True):
        torch.testing.assert_close(p.double(), q.grad, rtol=0, atol=1e-5 * float(q.grad.abs().max()))


@pytest.mark.usefixtures("_vectors")
def test_an_image_does_not_depend_on_those_beside_it():
    convolutions, x = made(4, NATURE), pixels(9, 4, 84, 84, torch.uint8, False)
    with torch.no_grad():
        together = native_convolutions.run(x, 1 / 255, convolutions)
        for i in range(len(x)):
            assert torch.equal(native_convolutions.run(x[i : i + 1], 1 / 255, convolutions)[0], together[i])


def test_many_images_lose_no_digits():
    """A sum of ones in float32 alone stops at 16,777,216."""
    convolution = nn.Conv2d(1, 16, 1)
    nn.init.zeros_(convolution.weight)
    nn.init.ones_(convolution.bias)
    x = torch.ones(1500, 1, 120, 120)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        native_convolutions.run(x, 1.0, [convolution]).sum().backward()
    finally:
        torch.set_num_threads(threads)
    assert (convolution.bias.grad == 1500 * 120 * 120).all()


def test_no_images_and_nan_are_as_in_torch():
    convolutions = made(4, NATURE)
    assert native_convolutions.run(torch.zeros(0, 4, 84, 84), 1.0, convolutions).shape == (0, 3136)
    x = torch.zeros(2, 4, 84, 84)
    x[1, 2, 40, 40] = float("nan")
    y = native_convolutions.run(x, 1.0, convolutions)
    assert y[0].isfinite().all()
    assert torch.equal(y.isnan(), exact(x, 1.0, convolutions)[0].isnan())


def test_what_is_not_for_c_goes_to_torch():
    x = torch.zeros(2, 4, 84, 84)
    plain = made(4, NATURE)
    assert native_convolutions.fits(x, plain)
    for other in (
        nn.Conv2d(4, 32, 8, 4, padding=1), nn.Conv2d(4, 24, 8, 4), nn.Conv2d(4, 32, 2, 4),
        nn.Conv2d(4, 32, 8, 4, bias=False), nn.Conv2d(4, 32, 8, 4, groups=4), nn.Conv2d(4, 32, (8, 6), 4),
        nn.Conv2d(4, 32, 8, 4, dilation=2), nn.Conv2d(4, 32, 8, 4).double(),
    ):  # fmt: skip
        assert not native_convolutions.fits(x, [other, *plain[1:]])
    assert not native_convolutions.fits(x.double(), plain)
    assert not native_convolutions.fits(x.clone().requires_grad_(), plain)
    with torch.autocast("cpu", torch.bfloat16):
        assert not native_convolutions.fits(x, plain)


@pytest.mark.parametrize("is_native", [True, False])
def test_the_encoder_is_the_same_either_way(is_native, monkeypatch):
    encoder = ImageEncoder("nature_cnn", (4, 84, 84), True, "obs")
    encoder.initialize(torch.Generator().manual_seed(0))
    x = pixels(6, 4, 84, 84, torch.uint8, False)
    if not is_native:
        monkeypatch.setattr(native_layers, "LARGEST_LAYER", 0)
    features = encoder(x)
    hidden, _ = exact(x, 1 / 255, [layer for layer in encoder.convolutions if isinstance(layer, nn.Conv2d)])
    dense = encoder.dense
    expected = (hidden @ dense.weight_0.double().t() + dense.bias_0.double()).relu()
    torch.testing.assert_close(features.double(), expected, rtol=0, atol=2e-6 * float(expected.detach().abs().max()))
