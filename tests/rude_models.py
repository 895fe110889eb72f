"""A network that takes part in the deaths of `tests/moments.py`, and one that notes what the learner learned from."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from rltrain.config.schema import ModelSection
from rltrain.fields import EnvSpec
from rltrain.models.actor_critic import ActorCritic
from tests.moments import arm


class Small(ActorCritic):
    """A small network with the observations' statistics in it.

    Args:
        spec: what the env is.
        record: a file that gets the rows of each batch that was learned from; nothing for none.
    """

    def __init__(self, spec: EnvSpec, record: str):
        super().__init__(spec, ModelSection(hidden_sizes=(16,)).model_dump(), normalize_obs=True)
        self.record = record
        self.initialize(torch.Generator().manual_seed(torch.initial_seed()))

    def update_statistics(self, obs: dict[str, Tensor]) -> None:
        """Called by the learner, once for each batch, with its valid rows in the order of time."""
        super().update_statistics(obs)
        if self.record:
            with open(self.record, "ab") as file:
                np.save(file, obs["obs"].numpy().astype(np.float64))


def make_model(spec: EnvSpec, moment: str, once: str, cause: str = "kill", record: str = "") -> Small:
    """Build a small network; runs in the learner, the server, the evaluator."""
    arm(moment, once, cause)
    return Small(spec, record)


def recorded(path: Path) -> list[np.ndarray]:
    """Return the rows of each batch that a learner has learned from."""
    with open(path, "rb") as file:
        return list(_arrays(file, path.stat().st_size))


def _arrays(file: BinaryIO, end: int):
    while file.tell() < end:
        yield np.load(file)
