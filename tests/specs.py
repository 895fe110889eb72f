"""Env specs and model sections for tests of models and algorithms."""

from __future__ import annotations

from rltrain.config.schema import ModelSection
from rltrain.fields import ActionSpec, EnvSpec, LeafSpec

TWO_WAY = ActionSpec("discrete", (), "int64", nvec=(2,), start=(0,))
FIVE_WAY = ActionSpec("discrete", (), "int64", nvec=(5,), start=(0,))
MULTI_DISCRETE = ActionSpec("multi_discrete", (3,), "int64", nvec=(2, 5, 3), start=(0, 0, 0))
MULTI_BINARY = ActionSpec("multi_binary", (3,), "int8", nvec=(2, 2, 2), start=(0, 0, 0))
BOX = ActionSpec("box", (2,), "float32", low=(-2.0, 0.0), high=(2.0, 10.0))
ALL_ACTIONS = (TWO_WAY, FIVE_WAY, MULTI_DISCRETE, MULTI_BINARY, BOX)
VECTOR = LeafSpec("obs", "box", (4,), "float32")


def env_spec(action: ActionSpec = TWO_WAY, *leaves: LeafSpec) -> EnvSpec:
    """Return a spec, by default with four floats as the observation."""
    return EnvSpec("Test-v0", leaves or (VECTOR,), action)


def model_section(**options) -> dict:
    """Return a model section as a dict."""
    return ModelSection(**options).model_dump()
