"""States as a learner saves them, for tests of checkpoints."""

from __future__ import annotations

import json
from typing import Any

import torch

from rltrain.config.schema import ActorsSection, Config, EnvSection
from tests.specs import env_spec

CONFIG = Config(env=EnvSection(id="Test-v0"), actors=ActorsSection(num_actors=2, groups_per_actor=1, envs_per_group=3))
CARRIED_BYTES = 3 * 4 * 4
"""Observations that go with a group's state: 3 envs of 4 floats."""
SNAPSHOT_BYTES = 100


def checkpoint_state(version: int = 1, model: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a whole state of two lanes with 3 envs each; the weights are 128 bytes."""
    return {
        "version": version,
        "env_steps": 10 * version,
        "next_log": 20,
        "episodes": {"returns": [1.0, 2.5], "lengths": [3, 4], "num_episodes": 7},
        "spec": json.dumps({**env_spec().to_dict(), "snapshot_bytes": SNAPSHOT_BYTES}),
        "config": json.dumps(CONFIG.model_dump(mode="json")),
        "model": {"weight": torch.ones(4)} if model is None else model,
        "train_state": {
            "weights": torch.zeros(128, dtype=torch.uint8),
            "optimizer": {"mean": torch.zeros(16), "mean_square": torch.zeros(16), "num_steps": torch.zeros(())},
            "generator": torch.Generator().get_state(),
            "reward_scaler": {
                "running_return": torch.zeros(6, dtype=torch.float64),
                **{name: torch.zeros((), dtype=torch.float64) for name in ("mean", "variance", "count")},
            },
            "updates": 4,
            "bad_updates": 0,
            "bad_updates_in_a_row": 0,
        },
        "training": {"algorithm": {}, "replay": {}, "ratio": {}},
        "previous_weights": torch.zeros(0, dtype=torch.uint8),
        "snapshots": {"1": torch.zeros(CARRIED_BYTES + SNAPSHOT_BYTES, dtype=torch.uint8)},
    }
