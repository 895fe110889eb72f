"""A network with which learning is slow: `model.kind = "tests.slow_models:make_model"`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltrain.config.schema import ModelSection
from rltrain.fields import EnvSpec
from rltrain.models.actor_critic import ActorCritic

SLEEP_S = 0.2


class Slow(ActorCritic):
    """Takes 0.2 s more for each pass of the learner; acts as quickly as any other."""

    def policy_and_value(self, obs: dict[str, Tensor], num_policy_rows: int | None = None) -> Any:
        """Be slow in the learner."""
        if Path("/proc/self/comm").read_text().startswith("rl:learner"):
            time.sleep(SLEEP_S)
        return super().policy_and_value(obs, num_policy_rows)


def make_model(spec: EnvSpec) -> Slow:
    """Build it."""
    model = Slow(spec, ModelSection(hidden_sizes=(16,)).model_dump(), normalize_obs=False)
    model.initialize(torch.Generator().manual_seed(torch.initial_seed()))
    return model
