"""Atari games, natively and as single envs."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rltrain.envs.make import make_group
from tests.envs.rollout import Rollout, section

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
USUAL = {"frame_stack": 4, "resize": (84, 84), "grayscale": True}


@pytest.mark.parametrize("vectorization", ["native", "single"])
@pytest.mark.parametrize(
    ("options", "shape"),
    [(USUAL, (4, 84, 84)), ({}, (210, 160, 3)), ({"grayscale": True, "resize": (60, 40)}, (60, 40))],
    ids=["usual", "raw", "gray"],
)
def test_atari_observations_have_the_shape_asked_for(vectorization, options, shape):
    made = Rollout(section("ALE/Pong-v5", vectorization=vectorization, **options), num_envs=2).start()
    rows = made.run(3)
    assert made.spec.is_native == (vectorization == "native")
    assert made.spec.obs[0].shape == shape
    assert made.spec.obs[0].dtype == "uint8"
    assert made.spec.snapshot_bytes == 0
    assert rows["obs"].any()


def test_atari_auto_is_native():
    assert Rollout(section("ALE/Pong-v5", **USUAL)).spec.is_native


@pytest.mark.parametrize(("kwargs", "expected"), [({}, 3), ({"num_threads": 2}, 2)])
def test_atari_envs_have_the_threads_they_are_given(kwargs, expected, monkeypatch):
    """Each group had one for every core of the machine, whatever the number of actors."""
    given, make_vec = {}, gymnasium.make_vec

    def made(spec, **options):
        given.update(options)
        return make_vec(spec, **options)

    monkeypatch.setattr(gymnasium, "make_vec", made)
    make_group(section("ALE/Pong-v5", kwargs=kwargs, **USUAL), 2, 0, 0, num_threads=3).close()
    assert given["num_threads"] == expected


@pytest.mark.parametrize("vectorization", ["native", "single"])
def test_atari_time_limit_counts_env_steps_and_cuts_as_truncation(vectorization):
    env = section("ALE/Pong-v5", vectorization=vectorization, max_episode_steps=10, **USUAL)
    made = Rollout(env, num_envs=2).start()
    rows = made.run(22)
    assert made.spec.max_episode_steps == 10
    assert rows["truncated"][:, 0].tolist() == ([False] * 9 + [True, False]) * 2
    assert rows["valid"][:, 1].tolist() == ([True] * 10 + [False]) * 2
    assert set(rows["episode_length"][rows["truncated"]]) == {10}


def test_atari_native_envs_are_seeded_each_and_repeatably():
    def run(seed: int) -> np.ndarray:
        made = Rollout(section("ALE/Pong-v5", **USUAL), num_envs=3, seed=seed).start()
        return made.run(40, np.full((40, 3), 2))["obs"]  # the same actions: only the seeds differ

    first = run(1)
    np.testing.assert_array_equal(first, run(1))
    assert (first[:, 0] != first[:, 1]).any()
    assert (first != run(2)).any()


def test_atari_own_limit_is_reported():
    assert Rollout(section("ALE/Pong-v5", **USUAL)).spec.max_episode_steps == 27_000


@pytest.mark.parametrize("vectorization", ["native", "single"])
def test_atari_rewards_are_the_raw_score(vectorization):
    made = Rollout(section("ALE/SpaceInvaders-v5", vectorization=vectorization, **USUAL), num_envs=2).start()
    rewards = made.run(120)["reward"]
    assert rewards.max() >= 5
