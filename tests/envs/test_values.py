"""Single values an env returns: huge numbers, and environments without spaces."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from rltrain.envs.make import make_group
from rltrain.envs.values import BadValueError, as_flag, as_reward
from rltrain.errors import ConfigError, EnvContractError
from tests.envs.rollout import Rollout, section, toy


@pytest.mark.parametrize("reward", [10**400, -(10**400), 10**5000, np.array([10**400], object)], ids=lambda r: type(r))
def test_as_reward_integer_beyond_floats_is_refused(reward):
    with pytest.raises(BadValueError, match="the reward is ") as caught:
        as_reward(reward)
    assert len(str(caught.value)) < 400


def test_as_flag_huge_integer_is_refused():
    with pytest.raises(BadValueError, match="too large to print"):
        as_flag(10**5000, "terminated")


def test_group_with_a_reward_beyond_floats_stops_with_its_place():
    made = Rollout(toy("Count", reward=10**400)).start()
    with pytest.raises(EnvContractError, match="step 1 "):
        made.run(2)


class Bare(gymnasium.Env):
    pass


class HasObservationSpace(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)


class WrongSpace(HasObservationSpace):
    action_space = 4


class BareVector(VectorEnv):
    num_envs = 1
    single_action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Bare", "observation_space and action_space"), ("HasObservationSpace", "action_space"),
        ("WrongSpace", "action_space"), ("BareVector", "single_observation_space"),
    ],
)
def test_make_group_environment_without_a_space_is_refused(name, missing):
    env_id = f"tests.envs.test_values:{name}"
    with pytest.raises(ConfigError) as caught:
        make_group(section(env_id), 1, 0, 0)
    assert f"env.id = {env_id!r} returned {name} without {missing}. " in str(caught.value)
