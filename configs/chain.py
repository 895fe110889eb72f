"""A chain with one reward at its end: the environment on which prioritized replay shows what it is for."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Chain(gymnasium.Env):
    """Take the right one of two actions at each place, or fall off; the end gives 1, everything else 0.

    Which action is right alternates, so that no habit leads to the end: random actions get there once in 2^length
    episodes, and few of all transitions carry any news.

    Args:
        length: number of places.

    Source: the "blind cliffwalk" of Schaul et al. 2016 (arXiv:1511.05952), section 3.1.
    """

    def __init__(self, length: int = 10):
        self.length = length
        self.observation_space = spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.place = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin at the first place."""
        super().reset(seed=seed)
        self.place = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Go on with the right action, end with the wrong one."""
        if action != self.place % 2:
            return self._observation(), 0.0, True, False, {}
        self.place += 1
        has_arrived = self.place == self.length
        return self._observation(), float(has_arrived), has_arrived, False, {}

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.length, np.float32)
        if self.place < self.length:
            observation[self.place] = 1.0
        return observation


def make_env(length: int = 10) -> gymnasium.Env:
    """Build one chain."""
    return Chain(length)
