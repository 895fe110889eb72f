"""Convolutions without padding in C: float32 on a CPU, where torch's leave half of the arithmetic unused.

An image goes through all layers before the next one (`native/conv.c`); pixels are read as they lie, bytes included.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rltrain.models import native_layers
from rltrain.native import ffi, lib

Sizes = tuple[int, int, int, int, int, int]
"""Channels, height and width of what goes in; channels of what comes out; kernel; stride."""

_FIELDS = 11
_LINE = 16


def fits(images: Tensor, convolutions: Sequence[nn.Conv2d]) -> bool:
    """Whether these layers, each with its ReLU, are for C: square, without padding, float32; of bytes or float32."""
    return (
        images.is_cpu and images.dim() == 4 and images.dtype in (torch.uint8, torch.float32)
        and not images.requires_grad and not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
        and native_layers.LARGEST_LAYER > 0 and 0 < len(convolutions) <= lib.RL_MOST_CONVOLUTIONS
        and all(_is_plain(layer) for layer in convolutions)
    )  # fmt: skip


def _is_plain(layer: nn.Conv2d) -> bool:
    kernel, stride = layer.kernel_size[0], layer.stride[0]
    return (
        layer.kernel_size == (kernel, kernel) and layer.stride == (stride, stride) and stride <= kernel
        and layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1 and layer.bias is not None
        and layer.out_channels % _LINE == 0 and layer.weight.is_cpu and layer.weight.dtype == torch.float32
    )  # fmt: skip


def run(images: Tensor, scale: float, convolutions: Sequence[nn.Conv2d]) -> Tensor:
    """Apply the layers, each with its ReLU, as one autograd node.

    Args:
        images: [B, C, H, W], uint8 or float32; elements may lie apart.
        scale: what pixels are multiplied by.
        convolutions: see `fits`.

    Returns:
        [B, channels * height * width] of the last one, float32. Rows do not depend on each other.
    """
    sizes: list[Sizes] = []
    _, channels, height, width = images.shape
    for layer in convolutions:
        kernel, stride = layer.kernel_size[0], layer.stride[0]
        sizes.append((channels, height, width, layer.out_channels, kernel, stride))
        channels = layer.out_channels
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    parameters = [p for layer in convolutions for p in (layer.weight, layer.bias)]
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        result: Tensor = _Convolutions.apply(images, scale, sizes, *parameters)
        return result
    return _forward(images, scale, sizes, parameters, is_kept=False)[0]


class _Convolutions(torch.autograd.Function):
    """The chain rule of `run`."""

    @staticmethod
    def forward(ctx, images: Tensor, scale: float, sizes: list[Sizes], *parameters: Tensor) -> Tensor:
        result, kept = _forward(images, scale, sizes, parameters, is_kept=True)
        ctx.save_for_backward(images, *parameters, *kept)
        ctx.scale, ctx.sizes = scale, sizes
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, output_gradient: Tensor):
        images, *rest = ctx.saved_tensors
        num_layers = len(ctx.sizes)
        parameters, kept = rest[: 2 * num_layers], rest[2 * num_layers :]
        gradients = [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters]
        output_gradient = output_gradient.contiguous()
        _call(
            lib.rl_conv_backward, images, ctx.scale, ctx.sizes, parameters, kept, gradients,
            ffi.cast("float *", output_gradient.data_ptr()),
        )  # fmt: skip
        return None, None, None, *gradients


def _forward(
    images: Tensor, scale: float, sizes: list[Sizes], parameters: Sequence[Tensor], is_kept: bool
) -> tuple[Tensor, list[Tensor]]:
    """Return what comes out, and where wanted each layer's result, [B, height, width, channels]."""
    count = len(images)
    kept: list[Tensor] = []
    for _, height, width, outputs, kernel, stride in sizes:
        rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if is_kept:
            kept.append(torch.empty(count, rows, columns, outputs))
    result = torch.empty(count, outputs * rows * columns)
    _call(
        lib.rl_conv_forward, images, scale, sizes, parameters, kept, [], ffi.cast("float *", result.data_ptr())
    )
    return result, kept


def _call(
    function, images: Tensor, scale: float, sizes: list[Sizes], parameters: Sequence[Tensor], kept: Sequence[Tensor],
    gradients: Sequence[Tensor], output,
) -> None:
    parameters = [p.contiguous() for p in parameters]
    fields = array("q")
    for i, of_layer in enumerate(sizes):
        own = [p.data_ptr() for p in parameters[2 * i : 2 * i + 2]]
        fields.extend((*of_layer, *own, kept[i].data_ptr() if kept else 0))
        fields.extend([p.data_ptr() for p in gradients[2 * i : 2 * i + 2]] if gradients else (0, 0))
    assert len(fields) == _FIELDS * len(sizes)
    pixels = ffi.new("rl_images *")
    if images.dtype == torch.uint8:
        pixels.bytes = ffi.cast("uint8_t *", images.data_ptr())
    else:
        pixels.floats = ffi.cast("float *", images.data_ptr())
    pixels.scale, pixels.count = scale, len(images)
    pixels.image_step, pixels.channel_step, pixels.row_step, pixels.column_step = images.stride()
    status = function(
        ffi.cast("rl_convolution *", ffi.from_buffer(fields)), len(sizes), pixels, output, torch.get_num_threads(),
        native_layers.WIDEST_VECTORS,
    )
    if status != 0:
        raise MemoryError(f"no memory for {len(sizes)} convolutions of {len(images)} images")
