"""Spaces to stored rows and back."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rltrain.envs.boundary import describe_action, describe_obs, flatten_obs, to_env_action
from rltrain.errors import ConfigError, TrainingError
from rltrain.fields import ActionSpec
from tests.toy_envs import ACTION_SPACES

SUPPORTED = [name for name in ACTION_SPACES if name not in ("dict", "tuple")]


@pytest.mark.parametrize(
    ("space", "stored", "expected"),
    [
        (spaces.Discrete(3, start=-1), np.array([0, 2]), [-1, 1]),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([[0, 0], [1, 2]]), [[1, -1], [2, 1]]),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.array([[1, 2, 3, 4]]), [[[1, 2], [3, 4]]]),
        (spaces.MultiBinary(3), np.array([[1, 0, 1]]), [[1, 0, 1]]),
        (spaces.Box(np.array([0, -3], np.float32), np.array([10, 1], np.float32)), [[0.5, 0.5]], [[7.5, 0.0]]),
        (spaces.Box(-1, 1, (1,), np.float32), [[1.7]], [[1.0]]),
        (spaces.Box(-np.inf, np.inf, (2,), np.float64), [[1.5, -300.0]], [[1.5, -300.0]]),
        (spaces.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 4.0]), dtype=np.float64), [[7.0, 0.5]], [[7.0, 3.0]]),
        (spaces.Box(0, np.inf, (1,), np.float32), [[-2.0]], [[0.0]]),
        (spaces.Box(0, 255, (1,), np.uint8), [[1.0]], [[255]]),
        (spaces.Box(-3, 3, (1,), np.int64), [[0.5]], [[2]]),
    ],
    ids=str,
)
def test_to_env_action_is_exact_and_in_the_space(space, stored, expected):
    spec = describe_action(space)
    given = np.asarray(stored, spec.stored_dtype)
    actions = to_env_action(spec, given)
    np.testing.assert_array_equal(actions, expected)
    assert all(space.contains(action) for action in actions)
    assert not np.shares_memory(actions, given)


@pytest.mark.parametrize("name", SUPPORTED)
def test_to_env_action_random_actions_are_in_the_space(name):
    space = ACTION_SPACES[name]
    spec = describe_action(space)
    rng = np.random.default_rng(0)
    if spec.kind == "box":
        stored = rng.normal(0, 3, (500, spec.num_components)).astype(np.float32)
    else:
        stored = rng.integers(0, np.array(spec.nvec) if spec.stored_shape else spec.nvec[0], (500, *spec.stored_shape))
    actions = to_env_action(spec, stored)
    assert actions.shape == (500, *space.shape)
    assert all(space.contains(action) for action in actions)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_to_env_action_not_finite_is_an_error(bad):
    spec = describe_action(spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises(TrainingError, match="row 1"):
        to_env_action(spec, np.array([[0, 0], [0, bad]], np.float32))


@pytest.mark.parametrize("name", ["dict", "tuple"])
def test_describe_action_unsupported_space_is_shown(name):
    with pytest.raises(ConfigError) as caught:
        describe_action(ACTION_SPACES[name])
    assert str(ACTION_SPACES[name]) in str(caught.value)


def test_describe_action_survives_json():
    for name in SUPPORTED:
        spec = describe_action(ACTION_SPACES[name])
        assert isinstance(spec, ActionSpec)
        assert all(type(n) in (int, float) for n in (*spec.nvec, *spec.start, *spec.low, *spec.high))


def test_describe_obs_colliding_names_are_refused():
    box = spaces.Box(0, 1, (1,))
    with pytest.raises(ConfigError, match="collide"):
        describe_obs(spaces.Dict({"a.b": box, "a": spaces.Dict({"b": box})}))


def test_flatten_obs_keeps_the_order_of_describe_obs():
    space = spaces.Dict({"z": spaces.Discrete(4), "a": spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(2)))})
    obs = {"z": 3, "a": (np.array([0.0, 1.0], np.float32), 1)}
    leaves = dict(zip((leaf.name for leaf in describe_obs(space)), flatten_obs(space, obs), strict=True))
    assert {name: value.tolist() for name, value in leaves.items()} == {"obs.z": 3, "obs.a.0": [0, 1], "obs.a.1": 1}
