"""Convolutional encoders for images: the Nature DQN and the IMPALA network.

Layouts. An image is brought to channels first: `(H, W)` has one channel; of three axes the smaller of the first and
the last is the channels (the last when they are equal), which covers `(H, W, C)`, `(C, H, W)` and stacked gray frames
`(stack, H, W)`; of four axes the first is the stack, and the rule above holds for the other three.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.models import native_convolutions
from rltrain.models.mlp import DenseStack

SMALLEST_IMAGE = {"nature_cnn": 36, "impala_cnn": 8}
"""Smallest height and width in pixels that each network accepts."""


class ToChannelsFirst(nn.Module):
    """Turns images of one shape into [B, C, H, W].

    Args:
        shape: shape of one image, two to four axes.
    """

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        *stack, first, middle, last = shape if len(shape) > 2 else (1, *shape)
        channels_last = len(shape) > 2 and last <= first
        self.order = (2, 0, 1) if channels_last else (0, 1, 2)
        self.rows_columns_channels = (first, middle, last)
        channels, self.height, self.width = (self.rows_columns_channels[i] for i in self.order)
        self.stack = prod(stack)
        self.num_channels = self.stack * channels

    def forward(self, image: Tensor) -> Tensor:
        """Return [B, C, H, W] in the dtype of `image` [B, *shape]; a stack's frames are consecutive channels."""
        b = image.shape[0]
        image = image.reshape(b, self.stack, *self.rows_columns_channels)
        if self.order == (2, 0, 1):
            image = image.permute(0, 1, 4, 2, 3)
        return image.reshape(b, self.num_channels, self.height, self.width)


class ImageEncoder(nn.Module):
    """Encodes images of one shape into feature vectors.

    Args:
        kind: `nature_cnn` or `impala_cnn`.
        shape: shape of one image.
        is_byte: whether pixels are 0 to 255 and are divided by 255.
        name: field name, for messages.

    Raises:
        ConfigError: the image is smaller than `SMALLEST_IMAGE`.
    """

    def __init__(self, kind: str, shape: tuple[int, ...], is_byte: bool, name: str):
        super().__init__()
        self.layout = ToChannelsFirst(shape)
        self.scale = 1 / 255 if is_byte else 1.0
        smallest = SMALLEST_IMAGE[kind]
        if min(self.layout.height, self.layout.width) < smallest:
            raise ConfigError(
                f"model.kind = {kind!r} needs images of at least {smallest} x {smallest} pixels, but {name!r} of shape "
                f"{shape} is {self.layout.height} x {self.layout.width}. Use `env.resize`, "
                + ("`impala_cnn` (8 x 8) or `mlp`." if kind == "nature_cnn" else "or `mlp`.")
            )
        network = nature_layers if kind == "nature_cnn" else impala_layers
        self.convolutions, num_features = network(self.layout.num_channels, self.layout.height, self.layout.width)
        self.num_outputs = 512 if kind == "nature_cnn" else 256
        self.dense = DenseStack((num_features, self.num_outputs), "relu", activate_last=True)
        self._plain = [x for x in self.convolutions if isinstance(x, nn.Conv2d)] if kind == "nature_cnn" else []

    def initialize(self, generator: torch.Generator) -> None:
        """Set orthogonal weights with gain sqrt(2) and zero biases; residual blocks start as the identity.

        Six blocks that each add a branch of full size would make the output, and the first gradients, grow
        many times over. Source of the zero: Zhang et al. 2019 (arXiv:1901.09321), section 3.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.orthogonal_(module.weight, 2**0.5, generator=generator)
                nn.init.zeros_(module.bias)
        self.dense.initialize(generator)
        for module in self.modules():
            if isinstance(module, ResidualBlock):
                nn.init.zeros_(module.second.weight)

    def forward(self, image: Tensor) -> Tensor:
        """Map [B, *shape] to [B, num_outputs].

        The Nature network's convolutions run in C on a CPU (`models/native_convolutions.py`). Elsewhere pixels are laid
        out channels last, in which convolutions are faster: 1.5 to 1.7 times for an update on two cores of an Intel
        Xeon with AMX, 1.8 to 2 times in bfloat16 (December 2026).
        """
        pixels = self.layout(image)
        if self._plain and native_convolutions.fits(pixels, self._plain):
            return self.dense(native_convolutions.run(pixels, self.scale, self._plain))
        x = pixels.contiguous(memory_format=torch.channels_last).float() * self.scale
        return self.dense(self.convolutions(x).flatten(1))


def nature_layers(num_channels: int, height: int, width: int) -> tuple[nn.Sequential, int]:
    """Build the convolutions of the Nature DQN.

    Returns:
        The layers, and the number of features that come out.

    Source: Mnih et al. 2015 (doi:10.1038/nature14236), Methods, "Model architecture".
    """
    layers: list[nn.Module] = []
    for kernel, stride, out_channels in ((8, 4, 32), (4, 2, 64), (3, 1, 64)):
        layers += [nn.utils.skip_init(nn.Conv2d, num_channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
        num_channels = out_channels
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return nn.Sequential(*layers), num_channels * height * width


def impala_layers(num_channels: int, height: int, width: int) -> tuple[nn.Sequential, int]:
    """Build the convolutions of the deep IMPALA network (15 layers).

    Returns:
        The layers, and the number of features that come out.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), figure 3, right.
    """
    layers: list[nn.Module] = []
    for out_channels in (16, 32, 32):
        layers += [
            nn.utils.skip_init(nn.Conv2d, num_channels, out_channels, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            ResidualBlock(out_channels),
            ResidualBlock(out_channels),
        ]
        num_channels = out_channels
        height, width = (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.ReLU(inplace=True)), num_channels * height * width


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), same size.

    Args:
        num_channels: channels in and out.
    """

    def __init__(self, num_channels: int):
        super().__init__()
        self.first = nn.utils.skip_init(nn.Conv2d, num_channels, num_channels, 3, padding=1)
        self.second = nn.utils.skip_init(nn.Conv2d, num_channels, num_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape."""
        return x + self.second(torch.relu_(self.first(torch.relu(x))))
