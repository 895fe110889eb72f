"""Image preprocessing and frame stacking of single envs."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rltrain.envs.lookup import missing_package
from rltrain.errors import ConfigError


def has_preprocessing(env: dict) -> bool:
    """Whether an env section asks for any preprocessing of observations."""
    return env["frame_stack"] > 1 or env["resize"] is not None or env["grayscale"]


def preprocess(single: gymnasium.Env, env: dict) -> gymnasium.Env:
    """Wrap an env in the preprocessing that its section asks for: grayscale, then resize, then frame stack.

    Raises:
        ConfigError: an option does not fit the observation space; names option and space.
    """
    if env["grayscale"]:
        image = _require_image(single.observation_space, "env.grayscale = true", channels=3)
        single = Grayscale(single, image, _cv2(env["id"]))
    if env["resize"] is not None:
        image = _require_image(single.observation_space, f"env.resize = {list(env['resize'])}")
        single = Resize(single, image, tuple(env["resize"]), _cv2(env["id"]))
    if env["frame_stack"] > 1:
        space = single.observation_space
        if not isinstance(space, spaces.Box):
            raise ConfigError(
                f"env.frame_stack = {env['frame_stack']} needs a Box observation space, but env.id = {env['id']!r} "
                f"has {space}. Leave the option out or stack in a wrapper of your own."
            )
        single = FrameStack(single, space, env["frame_stack"])
    return single


class Grayscale(gymnasium.ObservationWrapper):
    """Turns [H, W, 3] RGB images into [H, W], with the luma weights of OpenCV."""

    def __init__(self, env: gymnasium.Env, image: spaces.Box, cv2: Any):
        super().__init__(env)
        self._cv2 = cv2
        self.observation_space = spaces.Box(0, 255, image.shape[:2], np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return one gray image, uint8 [H, W]."""
        return self._cv2.cvtColor(observation, self._cv2.COLOR_RGB2GRAY)


class Resize(gymnasium.ObservationWrapper):
    """Resizes uint8 images [H, W] or [H, W, C] by the mean over areas."""

    def __init__(self, env: gymnasium.Env, image: spaces.Box, size: tuple[int, int], cv2: Any):
        super().__init__(env)
        self._cv2 = cv2
        self._width_height = (size[1], size[0])
        self._shape = (*size, *image.shape[2:])
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return one image of the new size."""
        image = self._cv2.resize(observation, self._width_height, interpolation=self._cv2.INTER_AREA)
        return image.reshape(self._shape)  # OpenCV drops an axis of one channel


class FrameStack(gymnasium.Wrapper):
    """Stacks the last k observations on a new first axis, oldest first; at a reset the first one fills all k."""

    def __init__(self, env: gymnasium.Env, space: spaces.Box, num_frames: int):
        super().__init__(env)
        self.num_frames = num_frames
        self.observation_space = spaces.Box(
            np.repeat(space.low[None], num_frames, axis=0),
            np.repeat(space.high[None], num_frames, axis=0),
            dtype=space.dtype,
        )
        self.frames = np.zeros(self.observation_space.shape, space.dtype)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode with k copies of its first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.frames = np.repeat(np.asarray(obs)[None], self.num_frames, axis=0)
        return self.frames, info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict]:
        """Step and drop the oldest observation; each step returns a new array."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.frames = np.concatenate((self.frames[1:], np.asarray(obs)[None]))
        return self.frames, reward, terminated, truncated, info


def _require_image(space: spaces.Space, option: str, channels: int | None = None) -> spaces.Box:
    is_image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
    if not isinstance(space, spaces.Box) or not is_image or (channels and space.shape[2:] != (channels,)):
        wanted = "[height, width, 3]" if channels else "[height, width] or [height, width, channels]"
        raise ConfigError(
            f"{option} needs a uint8 image observation {wanted}, but it is {space}. Leave the option out."
        )
    return space


def _cv2(env_id: str) -> Any:
    try:
        return importlib.import_module("cv2")
    except ModuleNotFoundError as error:
        raise ConfigError(missing_package(env_id, error)) from error
