"""A group that is one vector env: its own implementation steps all envs at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rltrain.envs import forked
from rltrain.envs.autoreset import DisabledToNextStep
from rltrain.envs.boundary import action_converter, describe_action
from rltrain.envs.observations import ObsRows, all_finite
from rltrain.envs.seeding import env_seed
from rltrain.envs.snapshots import SnapshotSlot
from rltrain.envs.values import FIVE_VALUES, BadValueError, Place
from rltrain.errors import EnvContractError

ONE_SEED_EACH = ("SyncVectorEnv", "AsyncVectorEnv")
"""Vector envs that take a list with one seed for each env."""


class VectorEpisodes:
    """Where each of N envs stands; part of a snapshot."""

    def __init__(self, num_envs: int):
        self.returns = np.zeros(num_envs)
        self.begun_at = np.zeros(num_envs, np.int64)
        self.ended = np.zeros(num_envs, bool)
        self.numbers = np.zeros(num_envs, np.int64)
        self.any_ended = False
        self.num_rows = 0
        self.was_reset = False


class NativeGroup:
    """One vector env that resets in NEXT_STEP mode (see `group.EnvGroup`).

    Args:
        env: the vector env; `autoreset.to_next_step` has made or found it a NEXT_STEP one.
        env_id: id for messages.
        seed: the run's seed.
        first_env_index: number of the first env in the whole run.
        max_episode_steps: the limit in force, for `describe`; the vector env itself applies it.
    """

    is_native = True

    def __init__(
        self, env: gymnasium.vector.VectorEnv, env_id: str, seed: int, first_env_index: int,
        max_episode_steps: int | None,
    ):  # fmt: skip
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.max_episode_steps = max_episode_steps
        self._env = env
        self._env_id = env_id
        self._first_env_index = first_env_index
        self._seeds = [env_seed(seed, first_env_index + i) for i in range(env.num_envs)]
        self.is_adapted = isinstance(env, DisabledToNextStep)
        """Whether the env resets in another mode than NEXT_STEP by itself."""
        self._rows = ObsRows(self.observation_space, self.num_envs, warns=first_env_index == 0)
        self._convert = action_converter(describe_action(self.action_space))
        self._episodes = VectorEpisodes(self.num_envs)
        self._zeros = np.zeros(self.num_envs, np.float32)
        self._first_obs: dict[str, np.ndarray] | None = None
        self._snapshots = SnapshotSlot([self._episodes, env])
        self.stepping = memoryview(bytearray(24)).cast("q")

    def reset(self, obs_out: dict[str, np.ndarray]) -> None:
        """Begin new episodes; see `group.EnvGroup.reset`."""
        if self._first_obs is not None:
            for name, rows in self._first_obs.items():
                obs_out[name][...] = rows
            self._first_obs = None
            return
        episodes = self._episodes
        seed = None if episodes.was_reset else self._seed()
        episodes.was_reset = True
        episodes.numbers += 1
        episodes.begun_at[...] = episodes.num_rows
        episodes.returns[...] = 0.0
        episodes.ended[...] = episodes.any_ended = False
        self._say_stepping(0)
        try:
            answer = self._env.reset(seed=seed)  # type: ignore[arg-type]  # many take one seed each, too
        except Exception as error:
            error.add_note(f"In reset(): {self._place(0)} and the {self.num_envs - 1} others of its group.")
            raise
        forked.end_copy()
        self._write_obs(obs_out, answer[0])

    def step(
        self, actions: np.ndarray, obs_out: dict[str, np.ndarray], reward: np.ndarray, terminated: np.ndarray,
        truncated: np.ndarray, valid: np.ndarray, episode_return: np.ndarray, episode_length: np.ndarray,
    ) -> None:  # fmt: skip
        """Step all envs once; see `group.EnvGroup.step`."""
        self._first_obs = None
        episodes = self._episodes
        env_actions = self._convert(actions)
        self._say_stepping(episodes.num_rows + 1)
        try:
            answer = self._env.step(env_actions)
            forked.end_copy()
        except Exception as error:
            error.add_note(
                f"In step() of a group of {self.num_envs} envs whose first is the {self._place(0, ahead=1)}, actions "
                f"{env_actions[:8].tolist()!r}{' ...' if self.num_envs > 8 else ''}."
            )
            raise
        if len(answer) != 5:
            raise EnvContractError(f"{self._place(0, ahead=1)}: {FIVE_VALUES}")
        obs, got, has_terminated, has_truncated, _ = answer
        episodes.num_rows += 1
        self._write_result(reward, got, "reward")
        self._write_result(terminated, has_terminated, "terminated")
        self._write_result(truncated, has_truncated, "truncated")
        if episodes.any_ended:
            self._mark_resets(reward, terminated, truncated, valid)
        else:
            valid[...] = True
        self._write_obs(obs_out, obs)
        self._check_rewards(reward, got)
        episodes.returns += got * valid if episodes.any_ended else got
        np.logical_or(terminated, truncated, out=episodes.ended)
        ended = episodes.ended.nonzero()[0]
        episodes.any_ended = len(ended) > 0
        if episodes.any_ended:
            episode_return[ended] = episodes.returns[ended]
            episode_length[ended] = episodes.num_rows - episodes.begun_at[ended]

    def snapshot(self) -> bytes | None:
        """Return the state of all envs, or None; see `group.EnvGroup.snapshot`."""
        return self._snapshots.take()

    def snapshot_bytes(self) -> int:
        """Return the bound for the size of a snapshot; see `group.EnvGroup.snapshot_bytes`."""
        self._reset_if_fresh()
        return self._snapshots.measure()

    def restore(self, payload: bytes) -> None:
        """Write a snapshot into this vector env; see `group.EnvGroup.restore`."""
        self._reset_if_fresh()
        self._first_obs = None
        self._snapshots.put(payload)

    def close(self) -> None:
        """Close the vector env."""
        self._env.close()

    def _say_stepping(self, env_steps: int) -> None:
        self.stepping[0], self.stepping[1], self.stepping[2] = self._first_env_index, self.num_envs, env_steps

    def _seed(self) -> int | list[int] | np.ndarray:
        """Return the seed argument of the first reset: one each where that is known to work, else one for all."""
        kind = type(self._env.unwrapped).__name__
        if kind == "AtariVectorEnv":
            return np.array(self._seeds, np.int64)
        return self._seeds if kind in ONE_SEED_EACH else self._seeds[0]

    def _reset_if_fresh(self) -> None:
        if not self._episodes.was_reset:
            obs = self._rows.buffers()
            self.reset(obs)
            self._first_obs = obs

    def _mark_resets(
        self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, valid: np.ndarray
    ) -> None:
        episodes = self._episodes
        begun = episodes.ended.nonzero()[0]
        valid[...] = True
        valid[begun] = False
        reward[begun] = 0.0
        terminated[begun] = truncated[begun] = False
        episodes.numbers[begun] += 1
        episodes.begun_at[begun] = episodes.num_rows
        episodes.returns[begun] = 0.0

    def _write_result(self, out: np.ndarray, got: Any, name: str) -> None:
        if not isinstance(got, np.ndarray) or got.shape != out.shape or got.dtype.kind not in "biuf":
            raise EnvContractError(
                f"{self._place(0)}: `{name}` of the vector environment is {got!r}. Accepted: an array of numbers of "
                f"shape {out.shape}, one for each env. Correct what step() returns."
            )
        out[...] = got

    def _write_obs(self, obs_out: dict[str, np.ndarray], obs: Any) -> None:
        try:
            self._rows.write_all(obs_out, obs)
        except BadValueError as error:
            raise EnvContractError(f"{self._place(0)}: {error}") from None
        bad = self._rows.first_bad_row(obs_out)
        if bad is not None:
            raise EnvContractError(f"{self._place(bad[0])}: {bad[1]}")

    def _check_rewards(self, reward: np.ndarray, got: np.ndarray) -> None:
        if not all_finite(reward, self._zeros):
            row = int(np.argmin(np.isfinite(reward)))
            raise EnvContractError(
                f"{self._place(row)}: the reward is {got[row]!r}. Accepted: a finite number that fits float32. "
                "Correct what the environment's step() returns."
            )

    def _place(self, i: int, ahead: int = 0) -> Place:
        """Say where env `i` stands, `ahead` steps after the last one; its life counts reset rows in this class."""
        episodes = self._episodes
        step = int(episodes.num_rows - episodes.begun_at[i]) + ahead
        return Place(
            self._env_id, self._first_env_index + i, self._seeds[i], int(episodes.numbers[i]), step,
            episodes.num_rows + ahead,
        )  # fmt: skip
