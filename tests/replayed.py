"""Batches as a replay gives them, and a train state with its update, for tests of algorithms that learn from it."""

from __future__ import annotations

import torch

from rltrain.algos import load_algorithm
from rltrain.algos.train_state import TrainState
from rltrain.config.algorithms import AlgoSection
from rltrain.config.schema import Config
from rltrain.fields import EnvSpec, LeafSpec
from rltrain.models import build_model
from tests.learning import config
from tests.specs import BOX, FIVE_WAY, VECTOR, env_spec

NUM_ROWS = 12
REPLAY_ALGORITHMS = [
    name for name, field in AlgoSection.model_fields.items() if getattr(field.default, "source", None) == "replay"
]


def spec_for(name: str, *leaves: LeafSpec) -> EnvSpec:
    """Return a spec that the algorithm fits."""
    return env_spec(FIVE_WAY if name == "dqn" else BOX, *leaves)


def replay_config(name: str, algo: dict | None = None, **sections) -> Config:
    """Return a configuration of algorithm `name` with a small network."""
    model = {"hidden_sizes": (16, 16), "activation": "relu", **sections.pop("model", {})}
    return config(name, algo, model=model, **sections)


def start(settings: Config, spec: EnvSpec | None = None):
    """Return a fresh (train state, update)."""
    name = settings.algo.name
    spec = spec or spec_for(name)
    model = build_model(spec, settings.model_settings(), settings.env.normalize_obs, settings.run.seed)
    state = TrainState(model, settings, 1)
    return state, load_algorithm(name)(settings.algo.chosen, settings.learner, state)


def transitions(spec: EnvSpec, seed: int = 0, num_rows: int = NUM_ROWS) -> dict[str, torch.Tensor]:
    """Return a batch: some transitions of one step, some of three, some that end."""
    generator = torch.Generator().manual_seed(seed)
    batch = {}
    for prefix in ("", "next_"):
        for leaf in spec.obs:
            shape = (num_rows, *leaf.shape)
            batch[prefix + leaf.name] = (
                torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
                if leaf.dtype == "uint8" else torch.randn(shape, generator=generator)
            )  # fmt: skip
    action = spec.action
    batch["action"] = (
        torch.randint(0, action.nvec[0], (num_rows,), generator=generator) if action.kind == "discrete"
        else torch.rand(num_rows, action.num_components, generator=generator) * 2 - 1
    )  # fmt: skip
    batch["return_"] = torch.randn(num_rows, generator=generator)
    factors = torch.tensor([0.99, 0.99**3, 0.0])
    batch["discount"] = factors[torch.randint(0, 3, (num_rows,), generator=generator)]
    batch["is_weight"] = torch.rand(num_rows, generator=generator) * 0.9 + 0.1
    return batch


def all_weights(state: TrainState, update) -> dict[str, torch.Tensor]:
    """Return copies of everything that is trained or follows what is trained."""
    return {"model": state.flat.flat.clone(), **update.state_dict()}


def learned_gradient(state: TrainState, update) -> torch.Tensor:
    """Return a copy of the last gradient of what is learned with importance weights."""
    return (state.flat if not hasattr(update, "critics") else update.critics.flat).grad.clone()


IMAGE = LeafSpec("obs.image", "box", (3, 40, 40), "uint8")
LEAVES = {"vector": (VECTOR,), "image": (IMAGE,), "both": (IMAGE, LeafSpec("obs.vector", "box", (4,), "float32"))}
