"""Small models that show from outside what went through a run, named in configurations as `tests.toy_models:<Name>`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rltrain.fields import EnvSpec

LOGP_PER_VERSION = 0.01


class Stated:
    """A distribution over a single action whose log-probability is whatever it is told.

    Args:
        logp: float32 [B].
    """

    def __init__(self, logp: Tensor):
        self.logp = logp

    def sample(self, uniform: Tensor) -> Tensor:
        """Return action 0."""
        return torch.zeros(len(self.logp), dtype=torch.int64, device=self.logp.device)

    def mode(self) -> Tensor:
        """Return action 0."""
        return self.sample(self.logp)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return what was told."""
        return self.logp

    def entropy(self) -> Tensor:
        """Return 0 for each row."""
        return self.logp * 0


class VersionNet(nn.Module):
    """Says its own version in every log-probability: 0.01 for each batch that the learner has finished.

    Needs `env.normalize_obs = true`, as the learner then calls `update_statistics` once per batch.
    """

    noise_components = 1
    version: Tensor

    def __init__(self, spec: EnvSpec):
        super().__init__()
        self.name = spec.obs[0].name
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("version", torch.zeros((), dtype=torch.float64))

    def _logp(self, obs: dict[str, Tensor]) -> Tensor:
        rows = torch.zeros(len(obs[self.name])) + LOGP_PER_VERSION * self.version.float()
        return rows + 0 * self.weight

    def policy(self, obs: dict[str, Tensor]) -> Stated:
        """Return the log-probability of this version for every row."""
        return Stated(self._logp(obs))

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Return 0 for every row."""
        return torch.zeros(len(obs[self.name])) + 0 * self.weight

    def policy_and_value(self, obs: dict[str, Tensor], num_policy_rows: int | None = None) -> tuple[Stated, Tensor]:
        """Return both."""
        return Stated(self._logp(obs)[:num_policy_rows]), self.value(obs)

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Count one more version."""
        self.version += 1


class Recorder(VersionNet):
    """Appends every valid observation that the learner has learned from to a file, as float64.

    Args:
        path: of the file.
    """

    def __init__(self, spec: EnvSpec, path: str):
        super().__init__(spec)
        self.path = path

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Write the rows."""
        super().update_statistics(obs)
        with open(self.path, "ab") as file:
            file.write(obs[self.name].double().numpy().tobytes())
            os.fsync(file.fileno())


def recorded(path: Path) -> np.ndarray:
    """Return what a `Recorder` wrote, flat."""
    return np.fromfile(path, np.float64)
