"""Vector envs of the toy `Count`, as factories for tests of adapters."""

from __future__ import annotations

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from tests.toy_envs import Count, Reuse, SeedEcho

TOYS = {"Count": Count, "SeedEcho": SeedEcho, "Reuse": Reuse}


def vector(num_envs: int, mode: str, name: str = "Count", copy: bool = True, **kwargs) -> VectorEnv:
    """Return toys in gymnasium's own vector env with the given autoreset mode; without `copy` it reuses its arrays."""
    return SyncVectorEnv([lambda: TOYS[name](**kwargs)] * num_envs, copy, autoreset_mode=AutoresetMode[mode])


def with_limit(num_envs: int, max_episode_steps: int = 100) -> VectorEnv:
    """Return toys that never end by themselves, cut by the vector env's own time limit."""
    return SyncVectorEnv([lambda: gymnasium.wrappers.TimeLimit(Count(10**9), max_episode_steps)] * num_envs)


class Undeclared(VectorEnv):
    """Says nothing about its autoreset mode."""

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Count.observation_space, Count.action_space


def fixed_size() -> VectorEnv:
    """Return a vector env of 3 envs, whatever is asked for."""
    return vector(3, "NEXT_STEP")
