"""Atari games: the same preprocessing in the native vector implementation and in single envs.

Both take the max of the last two frames, begin an episode with up to 30 no-op actions (`noop_max` in `env.kwargs`),
never press FIRE by themselves, end an episode at the game's end only, and leave rewards as they are.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import VectorEnv, VectorWrapper

SCREEN = (210, 160)
NOOP_MAX = 30


def is_atari(spec: Registration) -> bool:
    """Whether a registration is a game of the Arcade Learning Environment with a vector implementation."""
    return str(spec.vector_entry_point).startswith("ale_py.")


def frame_limit(spec: Registration, kwargs: dict) -> int:
    """Return the number of env steps that the frame limit of a game allows."""
    merged = {**spec.kwargs, **kwargs}
    return merged["max_num_frames_per_episode"] // merged["frameskip"]


def make_native(
    spec: Registration, env: dict, num_envs: int, max_episode_steps: int | None, num_threads: int | None
) -> VectorEnv:
    """Build the native vector env of a game with the preprocessing of an env section.

    Its own frame limit truncates after `max_episode_steps` env steps; no-op frames do not count.
    """
    height, width = env["resize"] or SCREEN
    options = {
        "img_height": height, "img_width": width, "grayscale": env["grayscale"], "stack_num": env["frame_stack"],
        "noop_max": NOOP_MAX, "use_fire_reset": False, "reward_clipping": False,
        "num_threads": num_threads or 0, **env["kwargs"],
    }  # fmt: skip
    if max_episode_steps is not None:
        options["max_num_frames_per_episode"] = max_episode_steps * {**spec.kwargs, **options}["frameskip"]
    vector = gymnasium.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
    return vector if env["frame_stack"] > 1 else DropStackAxis(vector)


def make_single_game(spec: Registration, env: dict, options: dict[str, Any]) -> gymnasium.Env:
    """Build one game with the preprocessing of the native implementation, up to the frame stack.

    Args:
        spec: registration of the game.
        env: env section.
        options: arguments of `gymnasium.make`.
    """
    kwargs = {**spec.kwargs, **env["kwargs"]}
    spec = copy.deepcopy(spec)
    noop_max = kwargs.pop("noop_max", NOOP_MAX)
    frameskip = kwargs["frameskip"]
    spec.kwargs = {**kwargs, "frameskip": 1}
    height, width = env["resize"] or SCREEN
    return gymnasium.wrappers.AtariPreprocessing(
        gymnasium.make(spec, **options),
        noop_max=noop_max, frame_skip=frameskip, screen_size=(width, height), grayscale_obs=env["grayscale"],
    )  # fmt: skip


class DropStackAxis(VectorWrapper):
    """Drops the stack axis of length 1, [N, 1, H, W] -> [N, H, W]."""

    def __init__(self, env: VectorEnv):
        super().__init__(env)
        single, batched = env.single_observation_space, env.observation_space
        assert isinstance(single, spaces.Box), "Atari observes images"
        assert isinstance(batched, spaces.Box), "Atari observes images"
        self.single_observation_space = _without_axis(single, 0)
        self.observation_space = _without_axis(batched, 1)

    def reset(self, *, seed: Any = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset all envs."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs[:, 0], info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        """Step all envs."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        return obs[:, 0], reward, terminated, truncated, info


def _without_axis(space: spaces.Box, axis: int) -> spaces.Box:
    return spaces.Box(space.low.take(0, axis), space.high.take(0, axis), dtype=space.dtype)
