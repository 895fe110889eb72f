"""Whole runs in which a process kills itself at one moment of its work: they go on, nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.moments import MOMENTS
from tests.rude_models import recorded
from tests.runs import Ended, train, train_all, until

pytestmark = pytest.mark.timeout(600)

TOTAL = 4096
NUM_ENVS = 8
EPISODE_LENGTH = 20
SCHEDULES = ("overlap", "sync", "async")
LOCAL = "actor: before a forward of its own"
USUAL = (
    ("overlap", "actor: fragment half full"),
    ("sync", "actor: before publication"),
    ("overlap", "actor: after publication"),
    ("overlap", "server: before the scatter"),
    ("async", "server: before the reply"),
    ("overlap", "learner: after publication"),
    ("sync", "learner: before the release"),
    ("overlap", "learner: before the rename"),
)


def options(folder: Path, schedule: str, moment: str) -> dict[str, Any]:
    """Return the options of a run that has `moment` in the given schedule."""
    mine = {"moment": moment, "once": str(folder / f"{schedule}-{moment}".replace(" ", "-").replace(":", ""))}
    env = "Marked" if moment.startswith("actor") else "AtMoment"
    return {
        "env.id": f"tests.rude_envs:{env}", "model.kind": "tests.rude_models:make_model", "run.seed": 3,
        **{f"{section}.kwargs.{name}": value for section in ("env", "model") for name, value in mine.items()},
        **({"model.kwargs.record": "rows"} if env == "Marked" else {}),
        "run.total_env_steps": TOTAL, "pipeline.schedule": schedule, "env.normalize_obs": True,
        "algo.name": "appo" if schedule == "async" else "ppo", "checkpoint.every_env_steps": 512,
        "pipeline.inference": "local" if moment == LOCAL else "server",
    }  # fmt: skip


def check(run: Ended, schedule: str, moment: str, undisturbed: Ended) -> None:
    """Check that the run of a moment ended as if it had not come."""
    told = run.stdout + run.stderr
    assert run.returncode == 0, told
    process = MOMENTS[moment].process
    assert f"warning: {process} was killed by SIGKILL" in told, "the moment came"
    assert run.stderr == ""
    assert run.summary["restarts"] == 1, told
    assert run.summary["env_steps"] >= TOTAL
    assert run.summary["return_mean"] == EPISODE_LENGTH, "no episode was sewn together from two lives"
    if process == "actor-0":
        check_rows(recorded(run.directory / "rows"), run.summary["env_steps"], schedule != "async")
    elif schedule != "async":
        for figure in ("weights_sha256", "env_steps", "updates", "episodes"):
            assert run.summary[figure] == undisturbed.summary[figure], figure
    assert not list(run.folder.rglob("*.tmp"))


def check_rows(batches: list[np.ndarray], env_steps: int, is_lockstep: bool) -> None:
    """Check that whole fragments were learned from, each once and in its order; only `async` may drop some."""
    rows = np.concatenate(batches)
    assert len(rows) == env_steps
    assert len(np.unique(rows, axis=0)) == len(rows), "nothing was learned twice"
    envs = np.unique(rows[:, :2], axis=0)
    assert len(envs) == NUM_ENVS * 3 // 2, "the four envs of one actor lived twice"
    if is_lockstep:
        assert {len(np.unique(batch[:, :2], axis=0)) for batch in batches} == {NUM_ENVS}, "a fragment of each lane"
    for env in envs:
        steps = [batch[(batch[:, :2] == env).all(axis=1)][:, 2:] @ (EPISODE_LENGTH, 1) for batch in batches]
        if is_lockstep:
            assert (np.diff(np.concatenate(steps)) == 1).all(), env
        else:  # a batch may hold several fragments of a lane side by side
            assert (np.diff(np.concatenate([np.sort(part) for part in steps])) > 0).all(), env


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    runs = train_all(folder, {schedule: options(folder, schedule, "none") for schedule in SCHEDULES[:2]})
    return {schedule: run.finished() for schedule, run in runs.items()}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    return train_all(folder, {f"{s} {m}".replace(":", ""): options(folder, s, m) for s, m in USUAL}, at_once=4)


@pytest.mark.parametrize(("schedule", "moment"), USUAL)
def test_run_goes_on_after_a_death_at_a_chosen_moment(usual, undisturbed, schedule, moment):
    check(usual[f"{schedule} {moment}".replace(":", "")], schedule, moment, undisturbed.get(schedule))


@pytest.mark.stress
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if not moment.endswith(("built", "episode"))])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_run_goes_on_after_a_death_at_every_moment(tmp_path, undisturbed, schedule, moment):
    """Sixty-four runs take three minutes."""
    if schedule == "async" and moment.endswith("its envs' states"):
        pytest.skip("an asynchronous run saves no states of envs")
    with train(tmp_path, options(tmp_path, schedule, moment)) as run:
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    check(ended, schedule, moment, undisturbed.get(schedule))
