"""Same seed, same weights, however the work is spread; evaluation changes nothing; envs are told apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import scalars, toy, train_all
from tests.toy_models import recorded

pytestmark = pytest.mark.timeout(300)

LEARN = {"env.normalize_obs": True, "checkpoint.every_env_steps": 512, "checkpoint.keep": 100, "run.seed": 3}
LONG = {"run.total_env_steps": 8192}
SPREADS = {
    "two actors": {},
    "long": LONG,
    "four actors": {"actors.num_actors": 4, "actors.groups_per_actor": 1, "pipeline.max_queue_delay_us": 2000},
    "no delay": {**LONG, "pipeline.max_queue_delay_us": 0, "eval.every_env_steps": 512, "eval.episodes": 2},
    "local": {"actors.num_actors": 1, "actors.groups_per_actor": 4, "pipeline.inference": "local"},
}
"""Eight envs in four lanes, in every way."""


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    runs = {name: {**LEARN, **options} for name, options in SPREADS.items()}
    runs["sync"] = {**LEARN, "pipeline.schedule": "sync"}
    runs["sync local"] = {**runs["sync"], "pipeline.inference": "local"}
    runs["other seed"] = {**LEARN, "run.seed": 4}
    return {name: run.finished() for name, run in train_all(tmp_path_factory.mktemp("spread"), runs).items()}


def saved(run, position: int) -> dict:
    checkpoint, *_ = CheckpointStore.load(run.checkpoints[position])
    return checkpoint


@pytest.mark.parametrize("name", SPREADS)
def test_overlap_run_is_the_same_however_envs_and_batches_are_spread(spread, name):
    """A longer run begins like a shorter one too, where no schedule depends on its length."""
    one, other = saved(spread["two actors"], 1), saved(spread[name], 1)
    assert one["env_steps"] == other["env_steps"] >= 1024
    assert torch.equal(one["train_state"]["weights"], other["train_state"]["weights"])
    assert one["episodes"] == other["episodes"]
    if spread[name].summary["env_steps"] == one["env_steps"]:
        assert spread[name].summary["weights_sha256"] == spread["two actors"].summary["weights_sha256"]


def test_weights_of_sync_run_are_the_same_with_server_and_local_policy(spread):
    assert spread["sync"].summary["weights_sha256"] == spread["sync local"].summary["weights_sha256"]


def test_weights_of_other_seed_or_schedule_differ(spread):
    hashes = {spread[name].summary["weights_sha256"] for name in ("two actors", "sync", "other seed")}
    assert len(hashes) == 3


def test_learned_curves_of_same_seed_are_equal(spread):
    one, two = (scalars(spread[name].folder) for name in ("two actors", "four actors"))
    learned = [tag for tag in one if tag.startswith(("loss/", "rollout/"))]
    assert len(learned) > 8
    assert {tag: one[tag] for tag in learned} == {tag: two[tag] for tag in learned}


def test_evaluation_is_made_and_changes_nothing(spread):
    evaluated = spread["no delay"]
    assert evaluated.summary["evaluation"]["eval/return_mean"] > 0
    assert scalars(evaluated.folder)["eval/return_mean"]
    assert spread["long"].summary["evaluation"] is None
    assert evaluated.summary["weights_sha256"] == spread["long"].summary["weights_sha256"]
    assert evaluated.summary["env_steps"] == spread["long"].summary["env_steps"]


@pytest.mark.parametrize("name", ["two actors", "no delay", "sync local"])
def test_normaliser_has_counted_exactly_the_training_steps(spread, name):
    for path in spread[name].checkpoints:
        checkpoint, *_ = CheckpointStore.load(path)
        (count,) = (value for key, value in checkpoint["model"].items() if key.endswith("count"))
        assert float(count) == checkpoint["env_steps"] == int(path.stem.removeprefix("checkpoint-"))


@pytest.fixture(scope="module")
def first_observations(tmp_path_factory):
    """What each of 4 x 4 envs drew at its first reset: name of the run -> [16] numbers."""
    folder = tmp_path_factory.mktemp("seeds")
    kinds = {"seven": (7, "own", 4), "seven again": (7, "own", 1), "eight": (8, "own", 2), "global": (7, "numpy", 4)}
    runs = {
        name: {
            **toy("SeedEcho", n=1000, source=source), "run.seed": seed, "run.total_env_steps": 1,
            "actors.num_actors": actors, "actors.groups_per_actor": 4 // actors, "actors.envs_per_group": 4,
            "env.normalize_obs": True, "model.kind": "tests.toy_models:Recorder", "pipeline.fragment_length": 4,
            "model.kwargs.path": str(folder / f"{name}.rows"), "algo.ppo.num_minibatches": 1,
        }
        for name, (seed, source, actors) in kinds.items()
    }  # fmt: skip
    for run in train_all(folder, runs).values():
        run.finished()
    return {name: recorded(folder / f"{name}.rows")[:16] for name in runs}


@pytest.mark.parametrize("name", ["seven", "eight", "global"])
def test_envs_of_all_actors_draw_different_numbers(first_observations, name):
    assert len(np.unique(first_observations[name])) == 16


def test_envs_draw_by_the_seed_of_the_run_alone(first_observations):
    assert np.array_equal(first_observations["seven"], first_observations["seven again"])
    assert not np.intersect1d(first_observations["seven"], first_observations["eight"]).size
