"""Every kind of observation space, and what does not fit the declared one."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rltrain.errors import ConfigError, EnvContractError
from tests.envs.rollout import Rollout, section
from tests.toy_envs import Count

GIVEN = "tests.envs.image_toys:Given"
BOX = spaces.Box(-10, 10, (2,), np.float32)


def given(space: spaces.Space, obs, later=None) -> dict:
    return section(GIVEN, kwargs={"space": space, "obs": obs, "later": later})


@pytest.mark.parametrize(
    ("space", "obs", "leaves"),
    [
        (BOX, np.array([1, 2], np.float32), {"obs": [1, 2]}),
        (BOX, np.array([1, 2], np.float64), {"obs": [1, 2]}),
        (BOX, [1, 2], {"obs": [1, 2]}),
        (spaces.Box(0, 255, (2, 2), np.uint8), np.array([[1, 2], [3, 4]]), {"obs": [[1, 2], [3, 4]]}),
        (spaces.Discrete(19, start=2), 20, {"obs": 20}),
        (spaces.Discrete(19, start=2), np.int64(2), {"obs": 2}),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([2, -1]), {"obs": [2, -1]}),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), {"obs": [1, 0, 1]}),
        (spaces.Box(-1, 1, (), np.float32), np.float32(0.5), {"obs": 0.5}),
        (
            spaces.Dict({"z": BOX, "b": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"q": BOX})))}),
            {"z": np.ones(2, np.float32), "b": (2, {"q": np.zeros(2, np.float32)})},
            {"obs.z": [1, 1], "obs.b.0": 2, "obs.b.1.q": [0, 0]},
        ),
        (spaces.Tuple((BOX, spaces.Discrete(2))), (np.ones(2, np.float32), 1), {"obs.0": [1, 1], "obs.1": 1}),
    ],
    ids=str,
)
def test_group_stores_every_kind_of_observation(space, obs, leaves):
    made = Rollout(given(space, obs), num_envs=2).start()
    rows = made.run(2)
    assert {leaf.name for leaf in made.spec.obs} == set(leaves)
    for name, value in leaves.items():
        assert rows[name][0, 1].tolist() == value
        assert rows[name][2, 0].tolist() == value


@pytest.mark.parametrize(
    ("space", "bad", "parts"),
    [
        (BOX, np.zeros(3, np.float32), ["shape (3,)", "declares shape (2,)"]),
        (BOX, np.float32(1), ["shape ()", "declares shape (2,)"]),
        (BOX, np.array(["a", "b"]), ["dtype <U1", "dtype float32"]),
        (BOX, [[1], [1, 2]], ["dtype object"]),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([0.5]), ["dtype float64", "dtype uint8"]),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([256]), ["dtype int64", "dtype uint8"]),
        (spaces.Discrete(3, start=1), 0, ["is 0, outside its space"]),
        (spaces.Discrete(3, start=1), 4, ["is 4, outside its space"]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), ["is [1, 3], outside"]),
        (spaces.Dict({"a": BOX}), {"b": np.zeros(2)}, ["no leaf 'obs.a'"]),
        (BOX, np.array([0, -np.inf], np.float32), ["is -inf at component 1"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_group_observation_that_does_not_fit_is_refused(space, bad, parts, num_envs):
    with pytest.raises(EnvContractError) as caught:
        Rollout(given(space, bad), num_envs)
    good = space.sample()
    made = Rollout(given(space, good, bad), num_envs).start()
    with pytest.raises(EnvContractError) as later:
        made.run(1)
    for part in parts:
        assert part in str(caught.value)
        assert part in str(later.value)
    assert "reset (step 0" in str(caught.value)
    assert "step 1 (step 1" in str(later.value)
    assert GIVEN in str(later.value)


@pytest.mark.parametrize("space", [spaces.Text(4), spaces.Dict({"a": spaces.Sequence(BOX)}), spaces.Dict({})], ids=str)
def test_group_unsupported_observation_space_is_refused(space):
    with pytest.raises(ConfigError, match="observation"):
        Rollout(given(space, None))


class Wide(Count):
    """Observes float64 where float32 is declared."""

    def observe(self):
        """Return another dtype."""
        return np.array([self.t / 3])


def test_other_dtype_is_warned_of_once_for_each_leaf_and_by_the_first_group_only(caplog):
    env = section(f"{__name__}:Wide")
    for first_env_index in (0, 8):
        made = Rollout(env, 2, first_env_index=first_env_index).start()
        made.run(5)
        made.group.close()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("rltrain.envs", "WARNING")
    assert "'obs' has dtype float64, but its space declares float32. Training casts it" in record.getMessage()
