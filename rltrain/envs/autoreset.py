"""Vector envs to NEXT_STEP: the one autoreset mode that groups work with."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rltrain.errors import ConfigError


def to_next_step(env: VectorEnv, env_id: str, max_episode_steps: int | None) -> VectorEnv:
    """Return a vector env that resets in NEXT_STEP mode.

    Args:
        env: as built; NEXT_STEP is kept as it is, DISABLED is adapted.
        env_id: id for messages.
        max_episode_steps: limit to apply here, None for none; only an adapted env can apply one.

    Raises:
        ConfigError: the mode is SAME_STEP or not declared, or the limit cannot be applied.
    """
    mode = declared_mode(env)
    if mode is AutoresetMode.DISABLED:
        return DisabledToNextStep(env, max_episode_steps)
    if mode is not AutoresetMode.NEXT_STEP:
        found = "declares no autoreset mode" if mode is None else f"resets in {mode.name} mode"
        raise ConfigError(
            f"env.id = {env_id!r}: the vector environment {type(env.unwrapped).__name__} {found}. Accepted: "
            "AutoresetMode.NEXT_STEP, or DISABLED with `reset(options={'reset_mask': ...})`, in "
            "metadata['autoreset_mode']. Build it with NEXT_STEP, or set `env.vectorization` to 'single' to step "
            "single environments."
        )
    if max_episode_steps is not None:
        raise ConfigError(
            f"env.max_episode_steps = {max_episode_steps} cannot be applied to the vector environment "
            f"{type(env.unwrapped).__name__} of env.id = {env_id!r}: it takes no `max_episode_steps`. Let its "
            "constructor accept that argument, set `env.vectorization` to 'single', or leave the option out."
        )
    return env


def declared_mode(env: VectorEnv) -> AutoresetMode | None:
    """Return the autoreset mode that a vector env declares, or None."""
    core = env.unwrapped
    mode: Any = env.metadata.get("autoreset_mode")
    if core.metadata is VectorEnv.metadata:
        # The dict of the base class, shared by all that declare nothing; some envs write theirs into it.
        mode = getattr(core, "autoreset_mode", None)
    if isinstance(mode, AutoresetMode):
        return mode
    return next((m for m in AutoresetMode if mode in (m.value, m.name)), None)


class DisabledToNextStep(VectorWrapper):
    """Makes a vector env that never resets by itself one that resets in NEXT_STEP mode.

    A vector env steps all its envs at once, so an ended env cannot be left out of the step that is its reset row:
    it is reset right after its end, stepped along, and reset again, and that second reset begins the episode.

    Args:
        env: a vector env in DISABLED mode whose reset takes the option `reset_mask`.
        max_episode_steps: truncate after this many steps; None for no limit.
    """

    def __init__(self, env: VectorEnv, max_episode_steps: int | None):
        super().__init__(env)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.max_episode_steps = max_episode_steps
        self.ended = np.zeros(env.num_envs, bool)
        self.lengths = np.zeros(env.num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: dict | None = None) -> tuple[Any, dict]:
        """Reset all envs."""
        self.ended[...] = False
        self.lengths[...] = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict]:
        """Step all envs; those that ended in the step before return their reset."""
        begun = self.ended.copy()
        obs, reward, terminated, truncated, info = self.env.step(actions)
        reward = np.where(begun, 0, reward)
        terminated, truncated = terminated & ~begun, truncated & ~begun
        if begun.any():
            obs, _ = self._reset_masked(begun)
        self.lengths = np.where(begun, 0, self.lengths + 1)
        if self.max_episode_steps is not None:
            truncated |= self.lengths >= self.max_episode_steps
        self.ended = terminated | truncated
        if self.ended.any():
            obs = _copied(obs)
            self._reset_masked(self.ended)
        return obs, reward, terminated, truncated, info

    def _reset_masked(self, mask: np.ndarray) -> tuple[Any, dict]:
        return self.env.reset(options={"reset_mask": mask.copy()})


def _copied(obs: Any) -> Any:
    """Copy a nested batch: the reset that follows may write into the same arrays."""
    if isinstance(obs, dict):
        return {key: _copied(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_copied(part) for part in obs)
    return np.array(obs)
