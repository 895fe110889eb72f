"""A batch of on-policy data from a model, and a train state, for tests of updates."""

from __future__ import annotations

import numpy as np
import torch

from rltrain.algos import load_algorithm
from rltrain.algos.train_state import TrainState
from rltrain.config.schema import Config
from rltrain.fields import EnvSpec
from rltrain.models import build_model
from tests.specs import env_spec

NUM_STEPS, NUM_COLUMNS = 6, 8
LANES = np.arange(NUM_COLUMNS // 2)


def config(name: str, algo: dict | None = None, **sections) -> Config:
    """Return a configuration with the options `algo` of algorithm `name`."""
    return Config(env={"id": "Test-v0", **sections.pop("env", {})}, algo={"name": name, name: algo or {}}, **sections)


def start(settings: Config, spec: EnvSpec | None = None):
    """Return a fresh (train state, update function)."""
    model = build_model(spec or env_spec(), settings.model_settings(), settings.env.normalize_obs, settings.run.seed)
    update = load_algorithm(settings.algo.name)(settings.algo.chosen, settings.learner)
    return TrainState(model, settings, NUM_COLUMNS), update


def on_policy_batch(model, spec: EnvSpec | None = None, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a batch whose actions the model sampled; rows after ends are not valid and hold garbage."""
    spec = spec or env_spec()
    generator = torch.Generator().manual_seed(seed)
    shape = (NUM_STEPS + 1, NUM_COLUMNS)
    obs = {leaf.name: torch.randn(*shape, *leaf.shape, generator=generator) for leaf in spec.obs}
    uniform = torch.rand(shape[0] * shape[1], model.noise_components, generator=generator).clamp(1e-6, 1 - 1e-6)
    with torch.no_grad():
        policy = model.policy({name: x.flatten(0, 1) for name, x in obs.items()})
        action = policy.sample(uniform)
        logp = policy.log_prob(action)
    u = torch.rand(shape, generator=generator)
    terminated, truncated, valid = u < 0.1, (u >= 0.1) & (u < 0.2), torch.ones(shape, dtype=torch.bool)
    for t in range(1, shape[0]):
        valid[t] = ~((terminated[t - 1] | truncated[t - 1]) & valid[t - 1])
    reward = torch.randn(shape, generator=generator)
    batch = {
        **obs,
        "action": action.unflatten(0, shape),
        "behaviour_logp": logp.view(shape),
        "reward": reward,
        "terminated": terminated & valid,
        "truncated": truncated & valid,
        "valid": valid,
    }
    batch["reward"][~valid] = 0
    return batch


def weights_of(state: TrainState) -> torch.Tensor:
    """Return a copy of the flat parameters."""
    return state.flat.flat.clone()
