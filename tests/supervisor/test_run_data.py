"""What reaches the learner through the whole pipeline: rows, versions, log-probabilities, lag."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.runs import scalars, toy, train_all
from tests.toy_models import LOGP_PER_VERSION, recorded

pytestmark = pytest.mark.timeout(300)

ONE_PASS = {"algo.ppo.epochs": 1, "algo.ppo.num_minibatches": 1, "log.every_env_steps": 1}
VERSIONS = {**ONE_PASS, "env.normalize_obs": True, "model.kind": "tests.toy_models:VersionNet"}
ASYNC = {"algo.name": "appo", "pipeline.schedule": "async", "pipeline.max_policy_lag": 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    recorder = {"env.normalize_obs": True, "model.kind": "tests.toy_models:Recorder"}
    versions = {"algo.name": "appo", "algo.appo.num_minibatches": 1, "log.every_env_steps": 1,
                "env.normalize_obs": True,
                "model.kind": "tests.toy_models:VersionNet"}
    configs = {
        "rows": {**toy("Count", n=3, end="trunc"), **ONE_PASS, **recorder, "model.kwargs.path": str(folder / "learned"),
                 "pipeline.fragment_length": 16, "run.total_env_steps": 960},
        "overlap": {**VERSIONS, "run.total_env_steps": 6400},
        "sync": {**VERSIONS, "pipeline.schedule": "sync"},
        "async": {**versions, **ASYNC, "run.total_env_steps": 6400},
        "overwriting": {**ASYNC, "pipeline.when_full": "overwrite_oldest", "pipeline.num_slots": 8,
                        "pipeline.inference": "local", "run.total_env_steps": 30_000, "algo.appo.epochs": 8},
        "ratio": {"env.id": "Pendulum-v1", "env.normalize_obs": True, "pipeline.schedule": "sync",
                  "log.every_env_steps": 1, "model.initial_log_std": 0.5, "algo.ppo.learning_rate": 3e-3,
                  "run.total_env_steps": 6400,
                  "pipeline.fragment_length": 8},
    }  # fmt: skip
    ended = train_all(folder, configs)
    return {"folder": folder, **{name: run.finished() for name, run in ended.items()}}


def test_reset_rows_are_neither_learned_from_nor_counted(runs):
    learned = recorded(runs["folder"] / "learned")
    assert set(learned) == {0.0, 1.0, 2.0}, "3 is what the ended episode left behind"
    assert len(learned) == runs["rows"].summary["env_steps"] == 960
    batches = learned.reshape(10, 12, 8)  # 8 envs; 16 vector steps are 12 transitions and 4 resets
    assert np.array_equal(batches[0, :, 0], [0, 1, 2] * 4)
    assert runs["rows"].summary["episodes"] == 10 * 8 * 4
    assert runs["rows"].summary["return_mean"] == 3.0


def test_overlap_run_collects_every_row_with_the_version_before(runs):
    """The net says its version in each log-probability, so that one wrong or torn row would change the mean ratio."""
    deviations = [value for _, value in scalars(runs["overlap"].folder)["loss/ratio_deviation"]]
    assert len(deviations) == runs["overlap"].summary["policy_version"] >= 50
    assert deviations[0] == 0
    assert deviations[1:] == pytest.approx([math.expm1(LOGP_PER_VERSION)] * (len(deviations) - 1), rel=1e-4)
    assert runs["overlap"].summary["policy_lag_p99_versions"] == 1


def test_sync_run_collects_every_row_with_the_present_version(runs):
    deviations = [value for _, value in scalars(runs["sync"].folder)["loss/ratio_deviation"]]
    assert len(deviations) >= 8
    assert max(deviations) == 0
    assert runs["sync"].summary["policy_lag_p99_versions"] == 0


def test_async_run_ends_with_a_bounded_lag(runs):
    deviations = [value for _, value in scalars(runs["async"].folder)["loss/ratio_deviation"]]
    assert max(deviations) <= math.expm1(3 * LOGP_PER_VERSION) * 1.001
    assert runs["async"].summary["policy_lag_p99_versions"] <= 3
    assert runs["async"].summary["env_steps"] >= 6400
    assert "not reproducible" in runs["async"].stdout


def test_overwriting_run_ends_and_counts_what_it_dropped(runs):
    assert runs["overwriting"].summary["dropped_env_steps"] > 0
    assert runs["overwriting"].summary["overwritten_fragments"] > 0
    assert runs["overwriting"].summary["policy_lag_p99_versions"] <= 3
    assert set(runs["overwriting"].summary["ledger"]) == {"learner", "actor-0", "actor-1"}


def test_ratio_before_the_first_step_of_each_batch_is_one(runs):
    """With actions outside the bounds among them: what is stored is the sample, what the env gets is clipped."""
    curves = scalars(runs["ratio"].folder)
    assert len(curves["loss/ratio_deviation"]) >= 100
    assert max(value for _, value in curves["loss/ratio_deviation"]) < 1e-5
    assert max(value for _, value in curves["loss/approx_kl"]) > 1e-4, "later steps move the ratio"
