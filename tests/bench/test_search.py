"""The search of `rltrain tune` on made-up machines: how near it comes to the best, in how many probes."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from rltrain.bench.search import Probe, Search, Setting

BAD_START = Setting(1, 4, 1, "server", 1)
MACHINES = {
    # cores, seconds of an env step, of a policy row, of an updated row, of a call of each, of a hand-over
    "cheap envs, the learner binds": (2, 0.1e-6, 0.3e-6, 1.4e-6, 60e-6, 200e-6, 60e-6),
    "dear envs": (16, 200e-6, 2e-6, 4e-6, 60e-6, 300e-6, 60e-6),
    "slow hand-overs": (8, 5e-6, 1e-6, 2e-6, 30e-6, 200e-6, 500e-6),
    "dear policy": (4, 10e-6, 40e-6, 60e-6, 500e-6, 900e-6, 60e-6),
}


def rate_of(machine: tuple, s: Setting) -> Probe:
    """A pipeline of stages that share cores: fixed costs are spread over a batch's rows."""
    cores, env, row, update, call, start, hand_over = machine
    batch = s.num_envs if s.inference == "server" else s.envs_per_group
    infer = row + call / batch + (hand_over / s.envs_per_group if s.inference == "server" else 0)
    threads = min(s.num_threads, cores)
    learn = update / threads**0.8 + start / (32 * s.num_envs)
    stage_env = env / s.num_actors if s.inference == "server" else (env + infer) / s.num_actors
    if s.groups_per_actor == 1:
        stage_env += infer
    stage_env += 3e-9 * s.num_envs / 1024  # caches
    cpu = (env + infer + learn * threads**0.9) / cores
    over = max(1.0, (s.num_actors + threads) / cores) ** 0.5
    slowest = max(stage_env, infer if s.inference == "server" else 0, learn, cpu * over)
    return Probe(1 / slowest, learner_share=min(1.0, learn / slowest))


def searched(machine: tuple, start: Setting, noise: float = 0.0, seed: int = 0) -> Search:
    rng = random.Random(seed)
    search = Search(start, machine[0])
    while search.proposal is not None:
        probe = rate_of(machine, search.proposal.setting)
        search.tell(replace(probe, rate=probe.rate * rng.uniform(1 - noise, 1 + noise)))
    return search


def best_of_all(machine: tuple) -> float:
    cores = machine[0]
    grid = itertools.product(
        range(1, cores + 1), (4, 16, 64, 256, 1024, 4096), (1, 2, 3), ("server", "local"), range(1, cores + 1)
    )
    return max(rate_of(machine, Setting(*point)).rate for point in grid)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_search_from_a_bad_start_comes_near_the_best_of_all_settings(name, noise):
    search = searched(MACHINES[name], BAD_START, noise)
    reached = rate_of(MACHINES[name], search.best).rate
    assert reached >= 0.9 * best_of_all(MACHINES[name]), search.best
    assert len(search.probes) <= 30


def test_search_starts_where_it_is_told_and_tries_nothing_twice():
    tried = []
    search = Search(BAD_START, 2)
    while (proposal := search.proposal) is not None:
        tried.append(proposal.setting)
        search.tell(Probe(1.0))
    assert tried[0] == BAD_START
    assert len(set(tried)) == len(tried)
    assert search.best == BAD_START, "of equals the first stays"


def test_setting_that_cannot_be_tried_is_passed_over_and_one_that_fails_is_not_the_best():
    search = Search(BAD_START, 4, lambda setting: "no" if setting.envs_per_group > 16 else None)
    said = []
    while (proposal := search.proposal) is not None:
        assert proposal.setting.envs_per_group <= 16
        failed = proposal.setting.inference == "local"
        said.append(search.tell(Probe(None, problem="it broke") if failed else Probe(float(proposal.setting.num_envs))))
    assert "it broke" in said
    assert search.best.inference == "server"
    assert search.best.envs_per_group == 16


def test_more_actors_are_not_tried_for_a_learner_that_binds():
    search = Search(BAD_START, 16)
    tried = set()
    while (proposal := search.proposal) is not None:
        if proposal.setting.inference == "server":
            tried.add(proposal.setting.num_actors)
        search.tell(Probe(1.0, learner_share=0.97))
    assert tried == {1}


def test_each_probe_is_said_to_be_kept_or_not():
    search = Search(BAD_START, 2)
    assert search.tell(Probe(100.0)) == "the start"
    assert search.tell(Probe(150.0)) == "1.50 x the best so far: kept"
    assert search.tell(Probe(152.0)) == "1.01 x the best so far: not kept"
