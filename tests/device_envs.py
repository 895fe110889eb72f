"""Environments that compute with torch on a device, named in configurations as `tests.device_envs:<Name>`."""

from __future__ import annotations

from typing import Any

import torch

from tests.toy_envs import Count


class OnDevice(Count):
    """Counts on a device from its first reset on.

    Args:
        device: such as `cuda:0`.
        n: length of an episode.
    """

    def __init__(self, device: str, n: int = 20):
        super().__init__(n)
        self.device = device
        self.counted: Any = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin at 0, there too."""
        self.counted = torch.zeros(1, device=self.device)
        return super().reset(seed=seed)

    def step(self, action: Any):
        """Count one up, there too."""
        self.counted += 1
        assert int(self.counted) == self.t + 1
        return super().step(action)
