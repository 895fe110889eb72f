"""What a group of envs is to its caller, whatever it is made of."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from gymnasium import spaces


class EnvGroup(Protocol):
    """N envs stepped together, in NEXT_STEP semantics whatever is below.

    The row of a step holds what the env returned for it, the true last observation at an episode's end included.
    The next row of that env is its reset: the action is ignored, reward 0, flags False, `valid` False, and the
    observation is the first of the new episode.
    """

    num_envs: int
    observation_space: spaces.Space
    action_space: spaces.Space
    is_native: bool
    max_episode_steps: int | None
    stepping: memoryview
    """int64 words `env_index, num_envs, env_steps` of what is stepped just now, for whoever finds this process dead;
    see `shm.counters.CounterRow.stepping`."""

    def reset(self, obs_out: dict[str, np.ndarray]) -> None:
        """Begin new episodes and write their first observations; only the first reset of an env is seeded.

        Args:
            obs_out: leaf name -> [N, ...], written in place.
        """

    def step(
        self,
        actions: np.ndarray,
        obs_out: dict[str, np.ndarray],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        valid: np.ndarray,
        episode_return: np.ndarray,
        episode_length: np.ndarray,
    ) -> None:
        """Step all envs and write one row of each output in place.

        Args:
            actions: stored actions, [N, *stored_shape] (`fields.ActionSpec`).
            obs_out: leaf name -> [N, ...], the observations after the step.
            reward: float32 [N], raw.
            terminated: bool [N].
            truncated: bool [N].
            valid: bool [N], False on reset rows.
            episode_return: float64 [N], sum of raw rewards; written only where an episode ended.
            episode_length: int64 [N], env steps; written only where an episode ended.

        Raises:
            EnvContractError: an env returned what its spaces or the Gymnasium API do not allow.
        """

    def snapshot(self) -> bytes | None:
        """Return the state of all envs as data, or None when it cannot be captured."""

    def snapshot_bytes(self) -> int:
        """Return an upper bound for the size of a snapshot, 0 when there can be none; resets fresh envs."""

    def restore(self, payload: bytes) -> None:
        """Write a snapshot of a group that was built alike into this one.

        Raises:
            CheckpointError: the snapshot is damaged, or does not fit these envs.
        """

    def close(self) -> None:
        """Close the envs."""
