"""Whole runs whose envs raise, die, hang or send nonsense, or whose training diverges."""

from __future__ import annotations

import math
import re
import signal

import psutil
import pytest
import torch

from rltrain.envs.seeding import env_seed, life_seed
from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import Running, resume, scalars, toy, train, train_all, until

pytestmark = pytest.mark.timeout(300)

TOY = {**toy("Count", n=20), "supervision.max_restarts": 1, "supervision.restart_backoff_s": 0.05}
LONG = {"run.total_env_steps": 10**9}
NAN_STEP = 777


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    once = str(folder / "died")
    runs = {
        "hang in constructor": {**TOY, **toy("Hang", where="init"), "supervision.boot_timeout_s": 10.0},
        "boom": {**TOY, **LONG, **toy("Boom", k=57)},
        "boom in reset": {**TOY, **toy("Boom", k=0, where="reset")},
        "boom in a later reset": {**TOY, **LONG, **toy("Boom", k=2, where="reset", n=10),
                                 "supervision.max_restarts": 0},
        "boom in constructor": {**TOY, **toy("Boom", where="init")},
        "die once": {**TOY, **toy("Die", k=40, once=once), "run.total_env_steps": 4096},
        "die": {**TOY, **LONG, **toy("Die", k=40)},
        "hang": {**TOY, **LONG, **toy("Hang", k=20), "supervision.heartbeat_timeout_s": 3.0,
                 "supervision.max_restarts": 0},
        "nan": {**TOY, **LONG, **toy("Scripted", bad_obs_step=NAN_STEP), "checkpoint.every_env_steps": 1024},
        "boom in evaluation": {**TOY, "env.id": "tests.rude_envs:BoomInEvaluation", "run.total_env_steps": 40_000,
                               "eval.every_env_steps": 1024, "supervision.max_restarts": 0},
        "diverged": {"env.id": "Pendulum-v1", "algo.ppo.learning_rate": 1e6, "run.total_env_steps": 20_000,
                     "algo.ppo.max_grad_norm": "none", "checkpoint.every_env_steps": 256},
    }  # fmt: skip
    return train_all(folder, runs, at_once=4)


def has_process_of(text: str) -> str:
    """Return the name of the actor that a message names."""
    found = re.search(r"actor-\d", text)
    assert found, text
    return found[0]


def test_env_that_raises_in_step_ends_the_run_with_its_traceback_once(faults):
    run = faults["boom"]
    assert run.returncode == 4, run.stderr
    assert run.stderr.count("Traceback") == 1
    assert run.stderr.count("ValueError: boom") == 1
    assert "toy_envs.py" in run.stderr
    name = has_process_of(run.stderr)
    assert re.search(r"env index \d", run.stderr)
    assert "episode 3, step 17 (step 57 of this env)" in run.stderr
    assert "supervision.max_restarts = 1" in run.stderr
    assert not re.search("EOFError|BrokenPipe|ChannelClosed", run.stderr)
    assert "ValueError: boom" in run.log(name)
    assert run.summary["exit_code"] == 4
    assert run.summary["restarts"] >= 1
    assert run.checkpoints, "the learner saved what it had"


@pytest.mark.parametrize("where", ["reset", "constructor"])
def test_env_that_raises_while_starting_is_not_restarted(faults, where):
    run = faults[f"boom in {where}"]
    assert run.returncode == 3, run.stderr
    assert run.stderr.count("Traceback") == 1
    assert run.stderr.count("ValueError: boom") == 1
    has_process_of(run.stderr)
    assert not (run.directory / "runs").exists(), "nothing was trained"


def test_env_that_raises_in_a_later_reset_is_placed(faults):
    run = faults["boom in a later reset"]
    assert run.returncode == 4, run.stderr
    assert "In reset():" in run.stderr
    assert "episode 3, reset" in run.stderr


def test_actor_killed_once_is_restarted_and_the_run_finishes(faults):
    run = faults["die once"].finished()
    assert run.summary["restarts"] >= 1
    assert run.summary["env_steps"] >= 4096
    assert run.summary["return_mean"] == 20.0, "no episode was sewn together from two lives"
    killed = r"warning: actor-\d was killed by SIGKILL while stepping env index \d .*Unless somebody did it by hand"
    assert re.search(killed, run.stdout)
    assert run.stderr == ""


def test_actor_killed_again_and_again_ends_the_run(faults):
    run = faults["die"]
    assert run.returncode == 4, run.stderr
    (place,) = re.findall(r"actor-\d \(pid \d+\) was killed by SIGKILL while stepping (.*)", run.stderr)
    (env_index, seed) = re.match(r"env index (\d) \(seed (\d+)\), step 40 of this env, action [01]\.", place).groups()
    assert int(seed) == env_seed(life_seed(0, 1), int(env_index)), "the second life draws other numbers"
    assert f"All 2 deaths came from env index {env_index}: look at that environment" in place
    assert "Traceback" not in run.stderr
    assert run.checkpoints


def test_run_that_ended_by_a_dying_env_is_resumed_from_its_last_step(faults):
    """Case E15."""
    before = faults["die"]
    total = before.summary["env_steps"] + 1024
    mended = ("--set", "env.kwargs.k=1_000_000", "--set", f"run.total_env_steps={total}")
    with resume(before.directory, *mended) as run:
        after = run.end().finished()
    assert after.stdout.count("warning") == 0, after.stdout
    assert f"steps {before.summary['env_steps']:,}" in after.stdout, "it goes on where the learner was"
    assert after.summary["env_steps"] >= total
    assert after.summary["return_mean"] == 20.0


def test_env_that_raises_in_evaluation_ends_the_evaluations_only(faults):
    run = faults["boom in evaluation"].finished()
    assert run.summary["env_steps"] >= 40_000
    assert run.summary["evaluation"] is None
    assert "no more evaluations" in run.stdout
    assert "ValueError: boom" in run.log("evaluator")


def test_hanging_env_is_named_with_state_and_stack(faults):
    run = faults["hang"]
    assert run.returncode == 4, run.stderr
    assert re.search(r"actor-\d \(pid \d+\) gave no sign of life", run.stderr)
    assert re.search(r"actor-\d silent for \d+ s in state env_step: .*toy_envs.py.* in _hang", run.stdout)
    early = r"silent for \d s in state env_step, killed at \d+ s \(supervision.heartbeat_timeout_s\): .* in _hang"
    assert re.search(early, run.stdout), "it is told of before"
    assert "_hang" in run.stderr, "the function in which it hangs"
    assert run.summary["duration_s"] < 30


def test_hanging_constructor_is_named_with_its_stack(faults):
    run = faults["hang in constructor"]
    assert run.returncode == 3, run.stderr
    assert "actor-0" in run.stderr
    assert "supervision.boot_timeout_s = 10" in run.stderr
    assert "_hang" in run.stderr
    assert "__init__" in run.stderr


def finite_weights(path) -> bool:
    checkpoint, *_ = CheckpointStore.load(path)
    optimizer = [x for x in checkpoint["train_state"]["optimizer"].values() if isinstance(x, torch.Tensor)]
    return all(bool(x.isfinite().all()) for x in (*checkpoint["model"].values(), *optimizer))


def test_env_that_sends_nan_is_named_and_nothing_of_it_is_saved(faults):
    run = faults["nan"]
    assert run.returncode == 5, run.stderr
    assert "tests.toy_envs:Scripted" in run.stderr
    assert f"(step {NAN_STEP} of this env)" in run.stderr
    has_process_of(run.stderr)
    assert re.search("nan", run.stderr, re.IGNORECASE)
    assert "Traceback" not in run.stderr
    assert run.summary["restarts"] == 0, "it would send it again"
    assert run.checkpoints
    assert all(finite_weights(path) for path in run.checkpoints)


def test_diverging_training_stops_with_the_update_named_and_saves_nothing_infinite(faults):
    run = faults["diverged"]
    assert run.returncode == 5, run.stdout + run.stderr
    learner, actor = r"non-finite loss at update \d+", r"chose the action .*inf.*; it must be finite"
    assert re.search(f"{learner}|{actor}", run.stderr), "whichever meets it first"
    assert "learning_rate" in run.stderr
    assert all(finite_weights(path) for path in run.checkpoints)
    assert run.summary["return_mean"] is None or math.isfinite(run.summary["return_mean"])


NUM_KILLS = [5, pytest.param(20, marks=pytest.mark.slow)]
"""20 kills take 20 s."""


@pytest.mark.parametrize("num_kills", NUM_KILLS)
def test_actors_killed_again_and_again_are_restarted_within_seconds(tmp_path, num_kills):
    """Case M02: what one process lets go when it ends stays with the others."""
    patient = {"supervision.restart_backoff_s": 0.0, "supervision.max_restarts": num_kills}
    with train(tmp_path, {**LONG, **patient, "log.every_env_steps": 256}) as run:
        first = before = run.wait_training()
        for i in range(num_kills):
            name = f"actor-{i % 2}"
            before[name].send_signal(signal.SIGKILL)
            until(lambda: is_another(run, name, before[name]), f"another {name}", limit_s=15)  # noqa: B023
            before = run.children()
        at = max(curve(run))
        until(lambda: max(curve(run)) > at, "training goes on")
        run.signal(signal.SIGTERM)
        ended = run.end()
    assert ended.returncode == 143
    assert ended.stderr == ""
    assert ended.summary["restarts"] == num_kills
    assert [before[name].pid for name in ("learner", "inference")] == [
        first[name].pid for name in ("learner", "inference")
    ]


def is_another(run: Running, name: str, before: psutil.Process) -> bool:
    now = run.children().get(name)
    return now is not None and now != before


def curve(run) -> list[int]:
    return [step for step, _ in scalars(run.folder())["rollout/episodes"]]
