"""Running mean and variance of observations, as buffers that travel and are saved with the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 10.0
"""Normalised values are clipped to +- this."""
_EPSILON = 1e-8


class ObsNormaliser(nn.Module):
    """Scales one observation leaf to mean 0 and variance 1; frozen except in `update`.

    Args:
        shape: shape of one observation.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise float32 [B, *shape]."""
        scale = torch.rsqrt(self.variance + _EPSILON)
        if x.dtype != torch.float64:
            return ((x - self.mean.float()) * scale.float()).clamp_(-CLIP, CLIP)
        return ((x - self.mean) * scale).float().clamp_(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add observations to the statistics.

        Args:
            x: [B, *shape] of any dtype. No rows change nothing.

        Source: Chan, Golub and LeVeque 1979, equations 2.1: two sets of samples merged.
        """
        if x.shape[0] == 0:
            return
        batch_variance, batch_mean = torch.var_mean(x.double(), dim=0, correction=0)
        batch_count = x.shape[0]
        total = self.count + batch_count
        delta = batch_mean - self.mean
        between = delta.square() * (self.count * batch_count / total)
        self.variance.copy_((self.variance * self.count + batch_variance * batch_count + between) / total)
        self.mean.add_(delta * (batch_count / total))
        self.count.copy_(total)
