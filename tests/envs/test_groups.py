"""Rows that groups of single envs and of vector envs write."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from rltrain.envs.make import make_group
from rltrain.errors import EnvContractError
from tests.envs.rollout import Rollout, rollout, section, toy
from tests.toy_envs import Count

NATIVE_COUNT = "tests.envs.vector_toys:vector"


def count_by(kind: str, n: int = 3, end: str = "trunc") -> dict:
    if kind == "single":
        return toy("Count", n=n, end=end)
    return section(NATIVE_COUNT, kwargs={"mode": kind, "n": n, "end": end})


@pytest.mark.parametrize("kind", ["single", "NEXT_STEP", "DISABLED"])
def test_group_autoreset_modes_write_the_same_rows(kind):
    rows = rollout(count_by(kind), 16, num_envs=2)
    for column in range(2):
        assert rows["obs"][:, column, 0].tolist() == [0, 1, 2, 3] * 4 + [0]
        assert rows["valid"][:, column].tolist() == [True, True, True, False] * 4
        assert rows["truncated"][:, column].tolist() == [False, False, True, False] * 4
        assert rows["reward"][:, column].tolist() == [1, 1, 1, 0] * 4
    assert rows["valid"][:, 0].sum() == 12
    assert not rows["terminated"].any()


@pytest.mark.parametrize("kind", ["single", "NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize("end", ["term", "trunc", "both"])
def test_group_every_episode_reports_return_and_length_exactly(kind, end):
    rows = rollout(count_by(kind, end=end), 40, num_envs=2)
    ended = rows["terminated"] | rows["truncated"]
    assert ended.sum() == 20
    assert set(rows["episode_return"][ended]) == {3.0}
    assert set(rows["episode_length"][ended]) == {3}
    assert rows["terminated"].any() == (end != "trunc")
    assert rows["truncated"].any() == (end != "term")


def test_group_return_of_long_episode_is_summed_in_float64():
    made = Rollout(toy("Count", n=100_000, reward=0.1)).start()
    action = np.zeros((1000, 1), np.int64)
    for _ in range(100):
        rows = made.run(1000, action)
    assert rows["episode_return"][-1, 0] == pytest.approx(10_000, abs=1e-3)
    assert rows["episode_length"][-1, 0] == 100_000


@pytest.mark.parametrize("nested", [False, True])
def test_group_env_that_reuses_its_arrays_leaves_stored_rows_alone(nested):
    made = Rollout(toy("Reuse", n=3, nested=nested), num_envs=2).start()
    rows = made.run(16)
    before = {name: array.copy() for name, array in rows.items()}
    made.run(1000)
    names = ("obs.a", "obs.b.0", "obs.b.1") if nested else ("obs",)
    for name in names:
        assert rows[name][:, 0].ravel().tolist() == [0, 1, 2, 3] * 4 + [0]
        np.testing.assert_array_equal(rows[name], before[name])


def test_native_group_env_that_reuses_its_arrays_leaves_final_obs_alone():
    kwargs = {"mode": "DISABLED", "name": "Reuse", "n": 3, "copy": False}
    rows = rollout(section(NATIVE_COUNT, kwargs=kwargs), 16, num_envs=2)
    assert rows["obs"][:, 1, 0].tolist() == [0, 1, 2, 3] * 4 + [0]


def test_group_resets_once_for_each_episode_and_seeds_the_first_only():
    made = Rollout(toy("Spy", n=5), num_envs=2).start()
    made.run(60)
    for env in made.group._envs:
        assert len(env.seeds) == 11  # ten episodes ended, one is open
        assert env.seeds[0] is not None
        assert set(env.seeds[1:]) == {None}
        assert env.num_renders == 0
        assert env.render_mode is None


def test_group_reset_after_steps_begins_new_episodes_unseeded():
    made = Rollout(toy("Spy", n=5)).start()
    made.run(2)
    made.start()
    assert made.carry["obs"][0, 0] == 0
    assert made.group._envs[0].seeds[1:] == [None]
    assert made.run(5)["episode_length"][-1, 0] == 5


ACTIONS = ["discrete", "multi_discrete", "multi_discrete_2d", "multi_binary", "box32", "box64"]


@pytest.mark.parametrize("action", ACTIONS)
def test_group_every_action_is_in_the_action_space(action):
    made = Rollout(toy("Spy", n=5, action=action), num_envs=2).start()
    made.run(200)  # Spy refuses what its space does not contain
    spy = made.group._envs[0]
    assert all(spy.action_space.contains(a) for a in spy.actions)


def test_group_discrete_start_is_added():
    made = Rollout(toy("Spy", n=5)).start()
    made.run(300)
    assert set(made.group._envs[0].actions) == {-1, 0, 1}


def test_group_odd_rewards_count_as_the_same_number():
    rewards = [1, 1.0, np.float64(1), np.array([1.0])]
    rows = rollout(toy("Scripted", rewards=rewards, n=4), 4)
    assert rows["episode_return"][3, 0] == 4.0
    assert rows["reward"][:, 0].tolist() == [1, 1, 1, 1]


def test_group_reward_is_stored_to_float32_precision():
    rows = rollout(toy("Scripted", rewards=[0.1]), 1)
    assert abs(float(rows["reward"][0, 0]) - 0.1) < 1e-7


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 1e300, "1", np.array([1.0, 2.0])], ids=repr)
def test_group_bad_reward_names_env_episode_and_step(bad):
    env = toy("Scripted", rewards=[1.0] * 5 + [bad], n=4)
    made = Rollout(env, first_env_index=7).start()
    with pytest.raises(EnvContractError) as caught:
        made.run(10)
    message = str(caught.value)
    for part in ("tests.toy_envs:Scripted", "env index 7", "episode 2, step 2 (step 6 of this env)", repr(bad)):
        assert part in message


@pytest.mark.parametrize(("flag", "value"), [("none", "None"), ("two", "2")])
def test_group_flag_that_is_no_bool_is_refused(flag, value):
    with pytest.raises(EnvContractError, match=f"`terminated` is {value}"):
        rollout(toy("Scripted", flag=flag), 1)


class OldApi(Count):
    """Returns four values as environments of `gym` did."""

    def step(self, action):
        """Return `done` instead of two flags."""
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


def test_group_step_of_the_older_api_is_refused():
    with pytest.raises(EnvContractError, match=r"step 1 .*did not return five values"):
        rollout(section("tests.envs.test_groups:OldApi"), 1)


def test_group_numpy_flags_are_accepted():
    rows = rollout(toy("Scripted", flag="numpy", n=2), 5)
    assert rows["terminated"][:, 0].tolist() == [False, True, False, False, True]


def test_group_info_none_warns_once(caplog):
    with caplog.at_level(logging.WARNING):
        rollout(toy("Scripted", info=None), 10)
    assert [r.message for r in caplog.records if "info" in r.message] == [
        "env.id = 'tests.toy_envs:Scripted': `info` is None and taken as an empty dict; return a dict."
    ]


def test_group_nan_observation_names_env_and_step():
    made = Rollout(toy("Scripted", bad_obs_step=777, n=10**6), num_envs=2).start()
    with pytest.raises(EnvContractError) as caught:
        made.run(800)
    assert "tests.toy_envs:Scripted" in str(caught.value)
    assert "step 777" in str(caught.value)


def test_group_env_exception_keeps_its_traceback_and_gets_a_note():
    made = Rollout(toy("Boom", k=57), num_envs=2, first_env_index=4).start()
    with pytest.raises(ValueError, match="boom") as caught:
        made.run(100)
    assert "env index 4" in caught.value.__notes__[0]
    assert "step 57" in caught.value.__notes__[0]
    assert "action" in caught.value.__notes__[0]
    assert caught.traceback[-1].path.name == "toy_envs.py"


def test_group_env_exception_in_reset_says_reset():
    with pytest.raises(ValueError, match="boom") as caught:
        Rollout(toy("Boom", k=0, where="reset"))
    assert "In reset()" in caught.value.__notes__[0]
    made = Rollout(toy("Boom", k=2, where="reset", n=3)).start()
    with pytest.raises(ValueError, match="boom") as caught:
        made.run(20)
    assert len(caught.value.__notes__) == 1
    assert "episode 3, reset (step 6 of this env)" in caught.value.__notes__[0]


def test_group_max_episode_steps_truncates():
    rows = rollout({**toy("Count", n=10**9), "max_episode_steps": 50}, 51 * 40)
    assert rows["truncated"].sum() == 40
    assert not rows["terminated"].any()
    assert set(rows["episode_length"][rows["truncated"]]) == {50}


@pytest.mark.parametrize("vectorization", ["native", "single"])
def test_group_max_episode_steps_of_cartpole_takes_the_smaller(vectorization):
    env = section("CartPole-v1", vectorization=vectorization, max_episode_steps=5)
    made = Rollout(env, num_envs=3).start()
    assert made.spec.max_episode_steps == 5
    assert made.spec.is_native == (vectorization == "native")
    rows = made.run(12)
    assert rows["truncated"].sum() == 6
    assert set(rows["episode_length"][rows["truncated"]]) == {5}
    longer = make_group(section("CartPole-v1", vectorization=vectorization, max_episode_steps=9999), 1, 0, 0)
    assert longer.max_episode_steps == 500


@pytest.mark.parametrize("options", [{"mode": "DISABLED", "n": 10**9}, None])
def test_native_group_max_episode_steps_truncates(options):
    target = NATIVE_COUNT if options else "tests.envs.vector_toys:with_limit"
    env = section(target, kwargs=options or {}, max_episode_steps=5)
    made = Rollout(env, num_envs=2).start()
    assert made.spec.max_episode_steps == 5
    assert made.run(12)["truncated"][:, 0].tolist() == ([False] * 4 + [True, False]) * 2


def test_groups_seed_echo_draws_differ_between_envs_and_runs():
    def draws(seed: int) -> list[float]:
        groups = [Rollout(toy("SeedEcho"), 4, seed, first_env_index=4 * actor).start() for actor in range(4)]
        return [float(x) for g in groups for x in g.carry["obs"].ravel()]

    seven = draws(7)
    assert len(set(seven)) == 16
    assert draws(7) == seven
    assert not set(seven) & set(draws(8))


def test_native_group_cartpole_rows_are_consistent():
    made = Rollout(section("CartPole-v1"), num_envs=8).start()
    assert made.spec.is_native
    rows = made.run(300)
    ended = rows["terminated"] | rows["truncated"]
    assert ended.sum() > 20
    np.testing.assert_array_equal(~rows["valid"][1:], ended[:-1])
    np.testing.assert_array_equal(rows["episode_return"][ended], rows["episode_length"][ended])
    assert rows["reward"].sum() == rows["valid"].sum()


def test_native_and_single_cartpole_follow_the_same_physics():
    native, single = (Rollout(section("CartPole-v1", vectorization=v), 1).start() for v in ("native", "single"))
    single.group._envs[0].unwrapped.state = native.group._env.unwrapped.state[:, 0].copy()
    actions = np.ones((8, 1), np.int64)
    first, second = native.run(8, actions), single.run(8, actions)
    np.testing.assert_allclose(first["obs"][1:], second["obs"][1:], atol=1e-6)
