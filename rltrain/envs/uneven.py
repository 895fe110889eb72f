"""CartPole whose steps take a while, each its own: stands for a simulator, a browser, or a tool that is called.

`rltrain bench article` measures with it. A step waits without using a core, as for work that is done elsewhere.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

MAX_EPISODE_STEPS = 500


class UnevenCartPole(CartPoleEnv):
    """CartPole-v1 whose step takes a random time, log-uniform between two bounds.

    Args:
        shortest_ms: shortest step, > 0, in milliseconds.
        longest_ms: longest step, in milliseconds.
    """

    def __init__(self, shortest_ms: float = 1.0, longest_ms: float = 20.0):
        if not 0 < shortest_ms <= longest_ms:
            raise ValueError(
                f"env.kwargs: shortest_ms = {shortest_ms!r}, longest_ms = {longest_ms!r}. Accepted: "
                "0 < shortest_ms <= longest_ms."
            )
        super().__init__()
        self._bounds = math.log(shortest_ms / 1e3), math.log(longest_ms / 1e3)
        self._durations = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode; a seed also decides how long the steps take."""
        if seed is not None:
            self._durations = np.random.default_rng((seed, 1))
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Step as CartPole does, after a while."""
        time.sleep(self.draw_duration_s())
        return super().step(action)  # type: ignore[no-untyped-call]

    def draw_duration_s(self) -> float:
        """Return how long the next step takes, in seconds."""
        return math.exp(self._durations.uniform(*self._bounds))


def make_env(shortest_ms: float = 1.0, longest_ms: float = 20.0) -> gymnasium.Env:
    """Build one environment, cut after 500 steps as CartPole-v1 is."""
    return TimeLimit(UnevenCartPole(shortest_ms, longest_ms), MAX_EPISODE_STEPS)


def make_parallel(num_envs: int, shortest_ms: float = 1.0, longest_ms: float = 20.0) -> VectorEnv:
    """Build environments that are stepped at the same time, each in a process of its own; a step takes the longest."""
    return AsyncVectorEnv(
        [lambda: make_env(shortest_ms, longest_ms)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP
    )
