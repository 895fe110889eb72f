"""Toys that observe images or odd things."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Colours(gymnasium.Env):
    """Observes an 8x12 RGB image of one colour, red after the reset and brighter green with each step."""

    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 255, (8, 12, 3), np.uint8)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.t = 0

    def observe(self) -> np.ndarray:
        """Return the image."""
        image = np.zeros((8, 12, 3), np.uint8)
        image[..., 0 if self.t == 0 else 1] = 100 + self.t
        return image

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin red."""
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any):
        """Go on."""
        self.t += 1
        return self.observe(), 1.0, self.t == 6, False, {}

    def render(self) -> np.ndarray:
        """Return the observation, large enough for a video codec."""
        return self.observe().repeat(8, axis=0).repeat(8, axis=1)


class Given(gymnasium.Env):
    """Observes whatever it is told to.

    Args:
        space: the space it declares.
        obs: the observation it returns at resets.
        later: the observation it returns at steps.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, obs: Any, later: Any = None):
        self.observation_space = space
        self.obs = obs
        self.later = obs if later is None else later

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Return the observation."""
        super().reset(seed=seed)
        return self.obs, {}

    def step(self, action: Any):
        """Return the observation."""
        return self.later, 0.0, False, False, {}


def not_an_env() -> int:
    """Return something else."""
    return 3


def needs(size: int) -> gymnasium.Env:
    """Return an env; takes no argument but `size`."""
    return Colours()


def broken() -> gymnasium.Env:
    """Raise a TypeError of the factory's own."""
    return len(3)
