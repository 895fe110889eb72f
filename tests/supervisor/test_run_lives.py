"""Whole runs whose inference server or learner is killed: they go on, and end as if nothing had happened."""

from __future__ import annotations

import signal

import pytest

from tests.runs import Ended, Running, scalars, train, train_all, until

pytestmark = pytest.mark.timeout(300)

TOTAL = 12_288
LONG_ENOUGH = {
    "run.total_env_steps": TOTAL, "checkpoint.every_env_steps": 2048, "log.every_env_steps": 256, "run.seed": 3,
    "env.normalize_obs": True, "supervision.restart_backoff_s": 0.05,
}  # fmt: skip
LOCKSTEP = ("overlap", "sync")
SCHEDULES = (*LOCKSTEP, "async")
VICTIMS = ("inference", "learner")


def points(run: Running) -> int:
    """Return how far the curves on disk lead."""
    return max((step for step, _ in scalars(run.folder()).get("loss/learning_rate", [])), default=0)


def killed(folder, schedule: str, name: str) -> Ended:
    """Kill a process once a checkpoint is there, and let the run end by itself."""
    with train(folder, {**LONG_ENOUGH, "pipeline.schedule": schedule}) as run:
        until(lambda: run.ended_or(lambda: run.has_checkpoint() and points(run) > 2500), "a checkpoint")
        run.children()[name].send_signal(signal.SIGKILL)
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    return ended


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return train_all(folder, {s: {**LONG_ENOUGH, "pipeline.schedule": s} for s in LOCKSTEP})


@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_run_goes_on_after_a_death_and_comes_to_the_same_weights(tmp_path, undisturbed, schedule, name):
    ended = killed(tmp_path, schedule, name).finished()
    assert ended.summary["restarts"] == 1
    assert ended.summary["env_steps"] >= TOTAL
    assert ended.stderr == ""
    assert f"warning: {name} was killed by SIGKILL" in ended.stdout
    if schedule in LOCKSTEP:
        for figure in ("weights_sha256", "env_steps", "updates", "episodes", "return_mean"):
            assert ended.summary[figure] == undisturbed[schedule].summary[figure], figure
    for tag, curve in scalars(ended.folder).items():
        steps = [step for step, _ in curve]
        assert steps == sorted(set(steps)), tag
