"""One run seed becomes the seeds of all envs and processes."""

from __future__ import annotations

import random

import numpy as np

from rltrain.envs.seeding import env_seed, life_seed, seed_process
from tests.envs.rollout import Rollout, toy


def test_env_seed_is_distinct_within_a_run_and_between_runs():
    seven, eight = ({env_seed(seed, i) for i in range(5000)} for seed in (7, 8))
    assert len(seven) == len(eight) == 5000
    assert all(0 <= s < 2**31 for s in seven)
    assert len(seven & eight) < 5  # chance allows for 0.01


def test_env_seed_does_not_change_between_versions():
    # Saved runs and published curves depend on the rule.
    assert [env_seed(0, i) for i in range(3)] == [1968714344, 1763513229, 148012698]
    assert env_seed(2**62, 5) == 1819718556


def test_life_seed_gives_a_restarted_actor_other_episodes_and_the_first_life_the_runs_own():
    assert life_seed(7, 0) == 7
    seeds = {life_seed(run_seed, life) for run_seed in (0, 1, 2**62) for life in range(1, 50)}
    assert len(seeds) == 3 * 49
    assert all(0 <= seed < 2**63 for seed in seeds), "as run.seed is"
    assert env_seed(life_seed(0, 1), 0) != env_seed(0, 0)


def test_seed_process_actors_that_use_global_generators_differ():
    def draws(run_seed: int) -> list[float]:
        found = []
        for actor in range(4):
            seed_process(run_seed, actor)
            found += Rollout(toy("SeedEcho", source="numpy"), num_envs=4).start().carry["obs"].ravel().tolist()
        return found

    state, np_state = random.getstate(), np.random.get_state()
    try:
        seven = draws(7)
        assert len(set(seven)) == 16
        assert draws(7) == seven
        assert not set(seven) & set(draws(8))
        seed_process(7, 0)
        first = random.random()
        seed_process(7, 1)
        assert random.random() != first
    finally:
        random.setstate(state)
        np.random.set_state(np_state)
