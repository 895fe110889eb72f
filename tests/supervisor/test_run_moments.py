"""Whole runs in which a process kills itself at one moment of its work: they go on, nothing is lost or doubled."""

from __future__ import annotations

import pytest

from tests.moments import MOMENTS
from tests.runs import Ended, train, train_all, until

pytestmark = pytest.mark.timeout(600)

TOTAL = 4096
SCHEDULES = ("overlap", "sync", "async")
USUAL = (
    ("overlap", "actor: fragment half full"),
    ("sync", "actor: before publication"),
    ("overlap", "actor: before its envs' states"),
    ("overlap", "server: before the scatter"),
    ("async", "server: before the reply"),
    ("overlap", "learner: after publication"),
    ("sync", "learner: before the release"),
    ("overlap", "learner: before the rename"),
)


def options(folder, schedule: str, moment: str) -> dict:
    """Return the options of a run that has `moment` in the given schedule."""
    mine = {"moment": moment, "once": str(folder / f"{schedule}-{moment}".replace(" ", "-").replace(":", ""))}
    return {
        "env.id": "tests.moments:make_env", "model.kind": "tests.moments:make_model", "run.seed": 3,
        **{f"{section}.kwargs.{name}": value for section in ("env", "model") for name, value in mine.items()},
        "run.total_env_steps": TOTAL, "pipeline.schedule": schedule, "env.normalize_obs": True,
        "algo.name": "appo" if schedule == "async" else "ppo", "checkpoint.every_env_steps": 512,
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
    assert run.summary["return_mean"] == 20.0, "no episode was sewn together from two lives"
    if process != "actor-0" and schedule != "async":
        for figure in ("weights_sha256", "env_steps", "updates", "episodes"):
            assert run.summary[figure] == undisturbed.summary[figure], figure
    assert not list(run.folder.rglob("*.tmp"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    runs = train_all(folder, {schedule: options(folder, schedule, "none") for schedule in SCHEDULES})
    return {schedule: run.finished() for schedule, run in runs.items()}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usual")
    return train_all(folder, {f"{s} {m}".replace(":", ""): options(folder, s, m) for s, m in USUAL}, at_once=4)


@pytest.mark.parametrize(("schedule", "moment"), USUAL)
def test_run_goes_on_after_a_death_at_a_chosen_moment(usual, undisturbed, schedule, moment):
    check(usual[f"{schedule} {moment}".replace(":", "")], schedule, moment, undisturbed[schedule])


@pytest.mark.stress
@pytest.mark.parametrize("moment", [moment for moment in MOMENTS if not moment.endswith("built")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_run_goes_on_after_a_death_at_every_moment(tmp_path, undisturbed, schedule, moment):
    """Sixty runs take four minutes."""
    if schedule == "async" and moment == "actor: before its envs' states":
        pytest.skip("an asynchronous run saves no states of envs")
    with train(tmp_path, options(tmp_path, schedule, moment)) as run:
        ended = run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    check(ended, schedule, moment, undisturbed[schedule])
