"""An environment of your own, the smallest that shows everything: walk along a corridor to its end.

Copy this file, change what you like, and name your factory in `env.id` as `module:factory`.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Start near the left end; the right end is the goal.

    Args:
        length: number of places.
        render_mode: `rgb_array` for videos; None shows nothing.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012  as Gymnasium has it

    def __init__(self, length: int = 10, render_mode: str | None = None):
        self.length, self.render_mode = length, render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.position = 0
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode; all randomness comes from `self.np_random`, which `super().reset` seeds."""
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(self.length // 2))
        self.num_steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Go left (0) or right (1). Each step costs 0.01, the goal gives 1."""
        self.position = max(0, self.position + (1 if action == 1 else -1))
        self.num_steps += 1
        terminated = self.position >= self.length - 1  # the task is over: there is no value beyond
        truncated = self.num_steps >= 10 * self.length  # cut short: learning still counts what could have followed
        return self._observation(), float(terminated) - 0.01, terminated, truncated, {}

    def render(self) -> np.ndarray | None:
        """Return a picture of the corridor, uint8 [height, width, 3]; `rltrain eval --video` asks for it."""
        if self.render_mode != "rgb_array":
            return None
        picture = np.full((32, 32 * self.length, 3), 255, np.uint8)
        picture[:, -32:] = (0, 160, 0)
        picture[4:28, 32 * self.position + 4 : 32 * self.position + 28] = (200, 0, 0)
        return picture

    def _observation(self) -> np.ndarray:
        return np.array([self.position / self.length], np.float32)  # a new array each time


def make_env(length: int = 10, render_mode: str | None = None) -> gymnasium.Env:
    """Build one environment; arguments come from `env.kwargs`, `render_mode` from `rltrain eval --video`."""
    return Corridor(length, render_mode)
