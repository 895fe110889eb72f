"""Whole runs in which an actor dies at the one moment that could leave its lanes or its weights out of step."""

from __future__ import annotations

import pytest

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import toy, train_all

pytestmark = pytest.mark.timeout(300)

COMMON = {"run.total_env_steps": 4096, "supervision.restart_backoff_s": 0.05}
GAP = {"env.id": "tests.rude_envs:DieInGap", "env.kwargs.lane": 1, "env.kwargs.fragment_index": 3}
SCALED = {"env.normalize_reward": True, "algo.ppo.discount": 1.0}
LAST_STEP = 16
"""Of a fragment of `tests.runs.SMALL`; its groups have 2 envs."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restarts")
    late = {"n": 10**6, "k": LAST_STEP, "spared": 2}
    return train_all(folder, {
        "gap": {**COMMON, **GAP, "env.kwargs.once": str(folder / "died-gap")},
        "sync": {**COMMON, **toy("Die", once=str(folder / "died-sync"), **late), "pipeline.schedule": "sync"},
        "overlap": {**COMMON, **SCALED, **toy("Die", once=str(folder / "died-overlap"), **late)},
    }, at_once=3)  # fmt: skip


def test_actor_killed_between_publication_and_note_goes_on_and_nothing_is_learned_twice(runs):
    run = runs["gap"].finished()
    assert run.summary["restarts"] == 1
    assert run.summary["return_mean"] == 20.0
    assert run.summary["dropped_env_steps"] > 0, "the fragment that was there twice is dropped once"


@pytest.mark.parametrize("schedule", ["sync", "overlap"])
def test_actor_killed_with_one_lane_a_fragment_ahead_goes_on(runs, schedule):
    run = runs[schedule].finished()
    assert run.summary["restarts"] == 1
    assert run.summary["env_steps"] >= 4096


def test_discounted_returns_of_a_restarted_actors_envs_begin_anew(runs):
    """Every step is worth 1 and nothing is discounted: the return of an env is the number of its steps."""
    run = runs["overlap"]
    checkpoint, *_ = CheckpointStore.load(run.checkpoints[-1])
    returns = checkpoint["train_state"]["reward_scaler"]["running_return"].tolist()
    steps_each = run.summary["env_steps"] / len(returns)
    died, lived = sorted([returns[:4], returns[4:]])
    assert lived == [steps_each] * 4
    assert died == [steps_each - LAST_STEP] * 2 + [steps_each] * 2, "it had published a fragment of its first lane only"
