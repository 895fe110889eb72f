"""A group of single envs, stepped one after the other in one loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rltrain.envs import forked
from rltrain.envs.boundary import action_converter, describe_action
from rltrain.envs.lookup import missing_package
from rltrain.envs.observations import ObsRows
from rltrain.envs.seeding import env_seed
from rltrain.envs.snapshots import SnapshotSlot
from rltrain.envs.values import FIVE_VALUES, LARGEST_REWARD, BadValueError, Place, as_flag, as_reward
from rltrain.errors import ConfigError, EnvContractError

log = logging.getLogger(__name__)


class Episodes:
    """Where each of N envs stands; part of a snapshot."""

    def __init__(self, num_envs: int):
        self.lengths = [0] * num_envs
        self.returns = [0.0] * num_envs
        self.ended = [False] * num_envs
        self.numbers = [0] * num_envs
        self.steps_before = [0] * num_envs


class SingleGroup:
    """N single envs in NEXT_STEP semantics (see `group.EnvGroup`).

    Args:
        envs: the envs, preprocessing included, built alike.
        env_id: id for messages.
        seed: the run's seed.
        first_env_index: number of the first env in the whole run.
        max_episode_steps: truncate after this many steps; None leaves it to the envs.
    """

    is_native = False

    def __init__(
        self, envs: list[gymnasium.Env], env_id: str, seed: int, first_env_index: int, max_episode_steps: int | None
    ):
        self.num_envs = len(envs)
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self.max_episode_steps = max_episode_steps
        self._envs = envs
        self._env_id = env_id
        self._first_env_index = first_env_index
        self._seeds = [env_seed(seed, first_env_index + i) for i in range(len(envs))]
        self._rows = ObsRows(self.observation_space, self.num_envs, warns=first_env_index == 0)
        self._convert = action_converter(describe_action(self.action_space))
        self._steps: list[Callable] = [env.step for env in envs]
        self._episodes = Episodes(self.num_envs)
        self._first_obs: dict[str, np.ndarray] | None = None
        self._snapshots = SnapshotSlot([self._episodes, *envs])
        self._has_warned_of_info = False
        self.stepping = memoryview(bytearray(24)).cast("q")

    def reset(self, obs_out: dict[str, np.ndarray]) -> None:
        """Begin new episodes; see `group.EnvGroup.reset`."""
        if self._first_obs is None:
            for i in range(self.num_envs):
                self._reset_one(i, obs_out)
            self._check_obs(obs_out)
        else:
            for name, rows in self._first_obs.items():
                obs_out[name][...] = rows
            self._first_obs = None

    def step(
        self, actions: np.ndarray, obs_out: dict[str, np.ndarray], reward: np.ndarray, terminated: np.ndarray,
        truncated: np.ndarray, valid: np.ndarray, episode_return: np.ndarray, episode_length: np.ndarray,
    ) -> None:  # fmt: skip
        """Step all envs once; see `group.EnvGroup.step`."""
        self._first_obs = None
        terminated[...] = False
        truncated[...] = False
        valid[...] = True
        env_actions = self._convert(actions)
        rows, episodes, limit = self._rows, self._episodes, self.max_episode_steps
        lengths, returns, ended = episodes.lengths, episodes.returns, episodes.ended
        leaf = rows.leaves[0]
        dtype, shape = (leaf.dtype, leaf.spec.shape) if rows.is_flat else (None, None)
        out = obs_out[leaf.spec.name]
        ndarray = np.ndarray
        stepping, first, steps_before = self.stepping, self._first_env_index, episodes.steps_before
        stepping[1] = 1
        i = 0
        try:
            for i, step in enumerate(self._steps):
                if ended[i]:
                    self._reset_one(i, obs_out)
                    reward[i] = 0.0
                    valid[i] = False
                    continue
                length = lengths[i] + 1
                stepping[0], stepping[2] = first + i, steps_before[i] + length
                obs, got, has_terminated, has_truncated, info = step(env_actions[i])
                if forked.is_copy:
                    forked.end_copy()
                lengths[i] = length
                if got.__class__ is not float or not -LARGEST_REWARD <= got <= LARGEST_REWARD:
                    got = as_reward(got)
                returns[i] += got
                reward[i] = got
                if obs.__class__ is ndarray and obs.dtype is dtype and obs.shape == shape:
                    out[i] = obs
                else:
                    rows.write_one(obs_out, i, obs)
                if info is None:
                    self._warn_of_info()
                if has_terminated is not False or has_truncated is not False or length == limit:
                    terminated[i] = as_flag(has_terminated, "terminated")
                    truncated[i] = as_flag(has_truncated, "truncated") or length == limit
                    if terminated[i] or truncated[i]:
                        ended[i] = True
                        episode_return[i] = returns[i]
                        episode_length[i] = length
        except BadValueError as error:
            raise EnvContractError(f"{self._place(i)}: {error}") from None
        except Exception as error:
            if _is_from_unpacking(error):
                raise EnvContractError(f"{self._place(i, ahead=1)}: {FIVE_VALUES}") from None
            if not ended[i]:
                error.add_note(f"In step(): {self._place(i, ahead=1)}, action {env_actions[i].tolist()!r}.")
            raise
        self._check_obs(obs_out)

    def snapshot(self) -> bytes | None:
        """Return the state of all envs, or None; see `group.EnvGroup.snapshot`."""
        return self._snapshots.take()

    def snapshot_bytes(self) -> int:
        """Return the bound for the size of a snapshot; see `group.EnvGroup.snapshot_bytes`."""
        self._reset_if_fresh()
        return self._snapshots.measure()

    def restore(self, payload: bytes) -> None:
        """Write a snapshot into these envs; see `group.EnvGroup.restore`."""
        self._reset_if_fresh()
        self._first_obs = None
        self._snapshots.put(payload)

    def close(self) -> None:
        """Close the envs."""
        for env in self._envs:
            env.close()

    def _reset_if_fresh(self) -> None:
        """Do the seeded first reset early and keep its observations: what the envs hold is complete only then."""
        if self._episodes.numbers[0] == 0:
            obs = self._rows.buffers()
            self.reset(obs)
            self._first_obs = obs

    def _reset_one(self, i: int, obs_out: dict[str, np.ndarray]) -> None:
        episodes = self._episodes
        episodes.steps_before[i] += episodes.lengths[i]
        episodes.lengths[i], episodes.returns[i] = 0, 0.0
        episodes.numbers[i] += 1
        self.stepping[0], self.stepping[1], self.stepping[2] = self._first_env_index + i, 1, 0
        try:
            answer = self._envs[i].reset(seed=self._seeds[i]) if episodes.numbers[i] == 1 else self._envs[i].reset()
            forked.end_copy()
            obs, info = _unpack_reset(answer)
            self._rows.write_one(obs_out, i, obs)
        except BadValueError as error:
            raise EnvContractError(f"{self._place(i)}: {error}") from None
        except gymnasium.error.DependencyNotInstalled as error:  # some load what they need when they first render
            raise ConfigError(missing_package(self._env_id, error)) from error
        except Exception as error:
            error.add_note(f"In reset(): {self._place(i)}.")
            raise
        episodes.ended[i] = False  # only now: until here an error is the reset's
        if info is None:
            self._warn_of_info()

    def _check_obs(self, obs_out: dict[str, np.ndarray]) -> None:
        bad = self._rows.first_bad_row(obs_out)
        if bad is not None:
            raise EnvContractError(f"{self._place(bad[0])}: {bad[1]}")

    def _place(self, i: int, ahead: int = 0) -> Place:
        """Say where env `i` stands, `ahead` steps after the last one it finished."""
        episodes = self._episodes
        step = episodes.lengths[i] + ahead
        return Place(
            self._env_id, self._first_env_index + i, self._seeds[i], episodes.numbers[i], step,
            episodes.steps_before[i] + step,
        )  # fmt: skip

    def _warn_of_info(self) -> None:
        if not self._has_warned_of_info:
            self._has_warned_of_info = True
            log.warning("env.id = %r: `info` is None and taken as an empty dict; return a dict.", self._env_id)


def _is_from_unpacking(error: Exception) -> bool:
    """Whether `step` itself raised it, not the env: what the env returned could not be unpacked."""
    trace = error.__traceback__
    return isinstance(error, ValueError | TypeError) and trace is not None and trace.tb_next is None


def _unpack_reset(answer: Any) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise BadValueError(
            f"reset() returned {type(answer).__name__}. Accepted: the tuple (observation, info) of the Gymnasium API."
        )
    return answer
