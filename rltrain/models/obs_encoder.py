"""Observations in the env's own dtypes to one feature vector per row.

What happens to each leaf: images to a CNN; other boxes flattened, uint8 divided by 255, floats normalised where
`env.normalize_obs` asks for it; discrete and multi_discrete to (concatenated) one-hots, `start` subtracted;
multi_binary to floats. The results are concatenated in the spec's order.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from rltrain.errors import ConfigError
from rltrain.fields import LeafSpec
from rltrain.models.cnn import SMALLEST_IMAGE, ImageEncoder, ToChannelsFirst
from rltrain.models.normaliser import ObsNormaliser

CNN_KINDS = tuple(SMALLEST_IMAGE)


class ObsEncoder(nn.Module):
    """Encodes all leaves and concatenates the features.

    Args:
        leaves: observation leaves.
        kind: `mlp`, `nature_cnn`, `impala_cnn` or `auto`.

    Raises:
        ConfigError: `kind` is a CNN and no leaf is an image, or an image is too small for it.
    """

    def __init__(self, leaves: tuple[LeafSpec, ...], kind: str):
        super().__init__()
        if kind in CNN_KINDS and not any(leaf.is_image for leaf in leaves):
            shapes = ", ".join(f"{leaf.name}: {leaf.dtype} {leaf.shape}" for leaf in leaves)
            raise ConfigError(
                f"model.kind = {kind!r} needs an image (uint8 with two to four axes) in the observation, which has "
                f"{shapes}. Use `mlp` or `auto`."
            )
        self.names = tuple(leaf.name for leaf in leaves)
        self.encoders = nn.ModuleList(_leaf_encoder(leaf, kind) for leaf in leaves)
        self.num_outputs = sum(encoder.num_outputs for encoder in self.encoders)

    @property
    def has_cnn(self) -> bool:
        """Whether a leaf goes through a CNN."""
        return any(isinstance(encoder, ImageEncoder) for encoder in self.encoders)

    def initialize(self, generator: torch.Generator) -> None:
        """Initialise the CNNs."""
        for encoder in self.encoders:
            if isinstance(encoder, ImageEncoder):
                encoder.initialize(generator)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Map name -> [B, ...] to [B, num_outputs]."""
        features = [encoder(obs[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        if len(features) == 1:
            return features[0]
        return torch.cat([f.float() for f in features], 1)


class ObsNormalisers(nn.Module):
    """Normalises the float leaves of an observation and leaves the others as they are.

    Args:
        leaves: observation leaves.
    """

    def __init__(self, leaves: tuple[LeafSpec, ...]):
        super().__init__()
        chosen = [leaf for leaf in leaves if leaf.kind == "box" and leaf.dtype.startswith("float")]
        self.names = tuple(leaf.name for leaf in chosen)
        self.normalisers = nn.ModuleList(ObsNormaliser(leaf.shape) for leaf in chosen)

    def forward(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the observation with its float leaves normalised, float32."""
        changed = {name: n(obs[name]) for name, n in zip(self.names, self.normalisers, strict=True)}
        return {**obs, **changed}

    def update(self, obs: dict[str, Tensor]) -> None:
        """Add rows, name -> [B, ...], to the statistics."""
        for name, normaliser in zip(self.names, self.normalisers, strict=True):
            normaliser.update(obs[name])


class FlatEncoder(nn.Module):
    """Flattens a box or multi_binary leaf to floats.

    Args:
        leaf: the leaf; uint8 boxes are divided by 255.
    """

    def __init__(self, leaf: LeafSpec):
        super().__init__()
        self.scale = 1 / 255 if leaf.kind == "box" and leaf.dtype == "uint8" else 1.0
        self.num_outputs = prod(leaf.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, *shape] to float32 [B, num_outputs]."""
        x = x.reshape(x.shape[0], self.num_outputs).float()
        return x if self.scale == 1.0 else x * self.scale


class OneHotEncoder(nn.Module):
    """Turns a discrete or multi_discrete leaf into concatenated one-hots.

    Args:
        leaf: the leaf, with `nvec` and `start`.
    """

    def __init__(self, leaf: LeafSpec):
        super().__init__()
        self.num_components = len(leaf.nvec)
        self.num_outputs = sum(leaf.nvec)
        starts = leaf.start or (0,) * len(leaf.nvec)
        # Position of a component's value 0 in the concatenation: where its one-hot begins, less its start.
        firsts = [sum(leaf.nvec[:i]) - start for i, start in enumerate(starts)]
        self.register_buffer("position_of_zero", torch.tensor(firsts, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map integers [B, *shape] to float32 [B, num_outputs]."""
        positions = x.reshape(x.shape[0], self.num_components).long() + self.position_of_zero
        return torch.zeros(x.shape[0], self.num_outputs, device=x.device).scatter_(1, positions, 1.0)


def _leaf_encoder(leaf: LeafSpec, kind: str) -> nn.Module:
    if leaf.kind in ("discrete", "multi_discrete"):
        return OneHotEncoder(leaf)
    cnn = _cnn_for(leaf, kind)
    return FlatEncoder(leaf) if cnn is None else ImageEncoder(cnn, leaf.shape, True, leaf.name)


def _cnn_for(leaf: LeafSpec, kind: str) -> str | None:
    """Choose the CNN of a leaf: `auto` takes the Nature network where the image is large enough, else IMPALA's."""
    if not leaf.is_image or kind == "mlp":
        return None
    if kind != "auto":
        return kind
    layout = ToChannelsFirst(leaf.shape)
    side = min(layout.height, layout.width)
    return next((cnn for cnn in CNN_KINDS if side >= SMALLEST_IMAGE[cnn]), None)
