"""Rows of groups whose vector env does not keep to the Gymnasium API."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from rltrain.errors import EnvContractError
from tests.envs.rollout import Rollout, rollout, section


class BadVector(VectorEnv):
    """Two envs whose third step returns something wrong.

    Args:
        what: `reward`, `obs`, `shape`, `none` or `done`.
    """

    metadata: ClassVar[dict] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, what: str):
        self.num_envs, self.what, self.t = num_envs, what, 0
        self.single_observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Begin."""
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions):
        """Return zeros until the third step."""
        self.t += 1
        is_bad = self.t == 3
        if is_bad and self.what == "done":
            return np.zeros((self.num_envs, 1), np.float32), np.zeros(self.num_envs), np.zeros(self.num_envs, bool), {}
        obs, reward = np.zeros((self.num_envs, 1), np.float32), np.zeros(self.num_envs)
        if is_bad and self.what == "reward":
            reward[1] = np.inf
        if is_bad and self.what == "obs":
            obs[1] = np.nan
        if is_bad and self.what == "shape":
            obs = obs[:, 0]
        flags = np.zeros(self.num_envs, bool)
        return obs, None if is_bad and self.what == "none" else reward, flags, flags, {}


class LiveReset(BadVector):
    """Its episodes have two steps; on reset rows it returns a reward and a flag all the same."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs, "nothing")

    def step(self, actions):
        """Return the reward 5 always, and end on each second and third call."""
        obs, reward, flags, _, info = super().step(actions)
        return obs, reward + 5, flags | (self.t % 3 != 1), flags.copy(), info


def test_native_group_reset_rows_carry_neither_reward_nor_flags():
    rows = rollout(section("tests.envs.test_bad_vector_groups:LiveReset"), 6, num_envs=2)
    assert rows["valid"][:, 1].tolist() == [True, True, False] * 2
    assert rows["reward"][:, 1].tolist() == [5, 5, 0] * 2
    assert rows["terminated"][:, 1].tolist() == [False, True, False] * 2
    assert rows["episode_return"][[1, 4], 1].tolist() == [10, 10]
    assert rows["episode_length"][[1, 4], 1].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("reward", ["env index 11", "the reward is", "inf"]),
        ("obs", ["env index 11", "is nan at component 0"]),
        ("shape", ["shape (2,)", "declares shape (2, 1)"]),
        ("done", ["step() did not return five values"]),
        ("none", ["`reward` of the vector environment is None"]),
    ],
)
def test_native_group_bad_values_name_env_and_step(what, parts):
    env = section("tests.envs.test_bad_vector_groups:BadVector", kwargs={"what": what})
    made = Rollout(env, 2, first_env_index=10).start()
    with pytest.raises(EnvContractError) as caught:
        made.run(5)
    for part in ["step 3 (step 3 of this env)", *parts]:
        assert part in str(caught.value)
