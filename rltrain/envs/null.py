"""A vector env that does nothing, with the spaces of another one: the stand-in of `rltrain bench roofline`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from rltrain.config.schema import EnvSection
from rltrain.envs.make import make_group


class NullVectorEnv(VectorEnv):
    """Every step returns the same zeros, and no episode ends.

    Args:
        observation_space: of one env.
        action_space: of one env.
        num_envs: N.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, observation_space: Any, action_space: Any, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._obs = create_empty_array(observation_space, num_envs, fn=np.zeros)
        self._reward = np.zeros(num_envs)
        self._never = np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        """Return zeros."""
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        """Return zeros."""
        return self._obs, self._reward, self._never, self._never, {}


def make_env(like: dict, num_envs: int = 1) -> VectorEnv:
    """Build it; `env.id = "null"`.

    Args:
        like: an `[env]` section as a dict; its observations and actions, with its preprocessing.
        num_envs: N.
    """
    env = EnvSection(**{**like, "resize": tuple(like["resize"]) if like.get("resize") else None}).model_dump()
    group = make_group(env, 1, 0, 0)
    try:
        return NullVectorEnv(group.observation_space, group.action_space, num_envs)
    finally:
        group.close()
