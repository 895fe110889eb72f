"""Runs that are told to stop, or come to their end, while something is slow or does nothing any more."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import Ended, Running, resume, toy, train, until
from tests.supervisor.test_run_deaths import check_nothing_is_left
from tests.toy_models import recorded

pytestmark = pytest.mark.timeout(600)

LONG = {"run.total_env_steps": 10**9, "log.every_env_steps": 256}
STEPS = 3000


def signal_parent(run: Running, number: int) -> None:
    run.signal(number)


def signal_group(run: Running, number: int) -> None:
    os.killpg(run.process.pid, number)


def has_learned(run: Running) -> bool:
    return len(recorded(run.directory / "learned")) >= STEPS if (run.directory / "learned").exists() else False


def is_saving(run: Running) -> bool:
    return any(run.directory.glob("runs/*/checkpoints/.*.tmp"))


NEVER = {
    **toy("Count", n=20), "checkpoint.every_env_steps": 10**9, "model.kind": "tests.toy_models:Recorder",
    "env.normalize_obs": True,
}  # fmt: skip
STOPS = {
    "parent": (NEVER, has_learned, signal_parent, signal.SIGTERM, 143),
    "group": (NEVER, has_learned, signal_group, signal.SIGTERM, 143),
    "hangup": (NEVER, has_learned, signal_group, signal.SIGHUP, 129),
    "saving": ({"checkpoint.every_env_steps": 1, "model.hidden_sizes": [1024, 1024]}, is_saving, signal_parent,
               signal.SIGTERM, 143),
}  # fmt: skip


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Of each stop the run that got the signal, and the one that went on where `parent` was."""
    folder = tmp_path_factory.mktemp("stopped")
    first, started = {}, {}
    try:
        for name, (options, *_) in STOPS.items():
            own = {"model.kwargs.path": str(folder / name / "learned")} if options is NEVER else {}
            started[name] = train(folder / name, {**LONG, **options, **own})
        for name, (_, is_time, send, number, _) in STOPS.items():
            run = started[name]
            until(lambda: run.ended_or(lambda: is_time(run)), f"{name}: the moment")  # noqa: B023
            send(run, number)
        for name, run in started.items():
            first[name] = run.end()
            assert first[name].summary, "what a resumed run overwrites is read now"
            assert first[name].checkpoints
            until(lambda: not run.survivors(), f"{name}: no process is left", limit_s=10)  # noqa: B023
        total = first["parent"].summary["env_steps"] + 1024
        started["resumed"] = resume(folder / "parent", "--set", f"run.total_env_steps={total}")
        return {**first, "resumed": started["resumed"].end()}
    finally:
        for run in started.values():
            run.__exit__()


@pytest.mark.parametrize("name", STOPS)
def test_run_stopped_by_signal_saves_its_last_step(stopped, name):
    """Case M05."""
    first = stopped[name]
    code = STOPS[name][-1]
    assert first.returncode == code, first.stdout + first.stderr
    assert first.stderr == ""
    saved = [int(path.stem.split("-")[1]) for path in first.checkpoints]
    assert saved[-1] == first.summary["env_steps"]
    content, warnings, _ = CheckpointStore.load(first.folder)
    if name != "parent":  # where the second run has written more by now
        assert (content["env_steps"], warnings) == (saved[-1], [])
    if name != "saving":
        assert len(saved) == 1, "one before the signal would be of step 10**9"
        assert saved[0] >= STEPS


def test_run_stopped_by_signal_is_resumed_at_its_last_step(stopped):
    at, second = stopped["parent"].summary["env_steps"], stopped["resumed"].finished()
    assert f"steps {at:,}" in second.stdout, "it goes on where the first one was"
    assert second.summary["env_steps"] >= at + 1024
    check_nothing_is_left(second)


SLOW = {
    **toy("Count", n=20), "pipeline.schedule": "async", "algo.name": "appo", "actors.groups_per_actor": 1,
    "model.kind": "tests.slow_models:make_model", "pipeline.fragment_length": 8, "learner.max_batch_fragments": 2,
    "learner.min_batch_fragments": 1, "run.total_env_steps": 192,
}  # fmt: skip
"""At most 32 env steps in a batch, which takes the learner 0.2 s."""


@pytest.mark.parametrize(
    ("num_actors", "num_runs"), [(4, 1), pytest.param(16, 20, marks=pytest.mark.stress)], ids=["one", "twenty"]
)
def test_run_with_a_full_ring_ends_soon_after_the_last_step(tmp_path, num_actors, num_runs):
    """Case M06; twenty runs with sixteen actors take two minutes."""
    for i in range(num_runs):
        with train(tmp_path / str(i), {**SLOW, "actors.num_actors": num_actors}) as run:
            ended = run.end()
            now_s = time.time()
            until(lambda: not run.survivors(), "no process is left", limit_s=10)
        assert ended.finished().summary["state"] == "finished"
        assert now_s - ended.checkpoints[-1].stat().st_mtime < 10, "the last thing the learner does is to save"
        for actor in range(num_actors):
            assert ended.summary["ledger"][f"actor-{actor}"]["wait_slot"] > 0.2, "no slot was free"
        check_nothing_is_left(ended)


GRACE_S = 4.0
HELD = {
    "hanging env": ("actor: fragment half full", "hang"),
    "stopped actor": ("actor: before publication", "stop"),
    "stopped server": ("server: before the scatter", "stop"),
    "stopped learner": ("learner: in the update", "stop"),
}
USUAL = ("hanging env", "stopped server", "stopped learner")


def held_options(folder: Path, moment: str, cause: str, schedule: str) -> dict:
    mine = {"moment": moment, "cause": cause, "once": str(folder / "held")}
    return {
        "env.id": "tests.rude_envs:AtMoment", "model.kind": "tests.rude_models:make_model", "env.normalize_obs": True,
        **{f"{section}.kwargs.{name}": value for section in ("env", "model") for name, value in mine.items()},
        **LONG, "supervision.heartbeat_timeout_s": 600.0, "supervision.shutdown_grace_s": GRACE_S,
        "pipeline.schedule": schedule,
    }  # fmt: skip


def interrupt_held(started: dict[str, Running]) -> dict[str, tuple[Ended, float]]:
    """Press Ctrl-C in every run once its process is held; returns the ends and the seconds until then."""
    pressed_s, found = {}, {}
    for name, run in started.items():
        until(lambda: run.ended_or(lambda: (run.directory / "held").exists()), f"{name} is held")  # noqa: B023
        signal_group(run, signal.SIGINT)
        pressed_s[name] = time.monotonic()
    waiting = dict(started)
    while waiting:
        until(lambda: any(run.process.poll() is not None for run in waiting.values()), "the end", limit_s=60)
        for name in [name for name, run in waiting.items() if run.process.poll() is not None]:
            found[name] = waiting.pop(name).end(), time.monotonic() - pressed_s[name]
    return found


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    started = {}
    try:
        for name in USUAL:
            moment, cause = HELD[name]
            own = folder / name.replace(" ", "-")
            started[name] = train(own, held_options(own, moment, cause, "overlap"))
        found = interrupt_held(started)
        for name, run in started.items():
            until(lambda: not run.survivors(), f"{name}: no process is left", limit_s=10)  # noqa: B023
        return found
    finally:
        for run in started.values():
            run.__exit__()


@pytest.mark.parametrize("name", [name for name in USUAL if name != "stopped learner"])
def test_interrupt_while_a_process_is_held_saves_and_ends_the_run(held, name):
    """Case E16: a batch that will never come is not waited for as long as the grace lasts."""
    ended, seconds = held[name]
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert seconds < GRACE_S, ended.stdout
    assert ended.stderr == ""
    assert ended.summary["state"] == "stopped"
    assert [int(path.stem.split("-")[1]) for path in ended.checkpoints] == [ended.summary["env_steps"]]
    check_nothing_is_left(ended)


def test_interrupt_while_the_learner_is_held_ends_the_run_and_says_what_is_lost(held):
    ended, seconds = held["stopped learner"]
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert seconds < GRACE_S + 1, ended.stdout
    assert "stopped without a checkpoint" in ended.stderr
    assert "held by SIGSTOP" in ended.stdout
    assert not ended.checkpoints
    check_nothing_is_left(ended)


@pytest.mark.stress
@pytest.mark.parametrize("schedule", ["sync", "overlap", "async"])
@pytest.mark.parametrize("name", HELD)
def test_interrupt_while_any_process_is_held_ends_every_schedule(tmp_path, name, schedule):
    """Twelve runs take one and a half minutes."""
    moment, cause = HELD[name]
    with train(tmp_path, held_options(tmp_path, moment, cause, schedule)) as run:
        ended, seconds = interrupt_held({"it": run})["it"]
        until(lambda: not run.survivors(), "no process is left", limit_s=10)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert seconds < GRACE_S + 1
    assert bool(ended.checkpoints) is (name != "stopped learner")


@pytest.mark.parametrize("schedule", ["sync", "overlap", "async"])
def test_run_whose_time_is_over_ends_well_and_can_be_resumed(tmp_path, schedule):
    algo = "appo" if schedule == "async" else "ppo"
    limits = {**LONG, "run.time_limit_s": 1.0, "pipeline.schedule": schedule, "algo.name": algo}
    with train(tmp_path, {**toy("Count", n=20), **limits}) as run:
        ended = run.end().finished()
    assert ended.summary["reason"] == "time"
    assert "run.time_limit_s is over" in ended.stdout
    env_steps = ended.summary["env_steps"]
    assert CheckpointStore.load(Path(ended.summary["checkpoint"]))[0]["env_steps"] == env_steps > 0
    more = [f"run.total_env_steps={env_steps + 2000}", "run.time_limit_s=none"]
    with resume(tmp_path, *(part for option in more for part in ("--set", option))) as run:
        assert run.end().finished().summary["reason"] == "finished"


def test_time_of_a_run_begins_with_its_first_update(tmp_path):
    first_s = 0.5  # of each of the four envs of an actor, one after the other
    options = {**LONG, "env.id": "tests.slow_envs:Late", "env.kwargs.first_s": first_s, "run.time_limit_s": 1.0}
    with train(tmp_path, options) as run:
        summary = run.end().finished().summary
    assert summary["reason"] == "time"
    assert summary["duration_s"] - summary["first_update_s"] >= 0.9
    assert summary["updates"] > 1
    assert summary["env_steps_per_s"] > 0
