"""Whole runs that learn from a replay: reproducible, resumed with and without it, refused where it does not fit."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import resume, scalars, toy, train, train_all, until

pytestmark = pytest.mark.timeout(300)

DQN = {
    "algo.name": "dqn", "replay.capacity": 2_000, "replay.learning_starts": 256, "replay.batch_size": 32,
    "replay.updates_per_env_step": 0.25, "replay.n_step": 3, "replay.prioritized": True, "run.seed": 5,
    "algo.dqn.epsilon_start": 0.2, "algo.dqn.epsilon_end": 0.2, "algo.dqn.target_every_updates": 20,
    "replay.priority_beta": 0.5, "replay.priority_beta_end": 0.5, "algo.dqn.epsilon_ladder": True,
    "env.normalize_obs": True, "checkpoint.keep": 100,
}  # fmt: skip
"""Nothing depends on the length of the run, so that a longer one begins like a shorter one."""
SAC = {
    "env.id": "Pendulum-v1", "algo.name": "sac", "replay.capacity": 2_000, "replay.learning_starts": 256,
    "replay.batch_size": 32, "replay.updates_per_env_step": 0.25, "run.seed": 5, "checkpoint.keep": 100,
}  # fmt: skip
LOCAL = {"actors.num_actors": 1, "actors.groups_per_actor": 4, "pipeline.inference": "local"}
VARIANTS = {
    "straight": {"run.total_env_steps": 2048, "replay.save": True},
    "without prefetch": {"run.total_env_steps": 2048, "replay.prefetch": False},
    "local": {"run.total_env_steps": 2048, **LOCAL},
    "in a file": {"run.total_env_steps": 2048, "replay.in_file": True},
    "kept": {"replay.save": True},
    "emptied": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def dqn(tmp_path_factory):
    """Of each variant its run; of the last two, half a run and the rest after a resume."""
    folder = tmp_path_factory.mktemp("dqn")
    runs = {name: {**DQN, **options} for name, options in VARIANTS.items()}
    ended = {name: run.finished() for name, run in train_all(folder, runs).items()}
    halves = {name: ended[name].summary for name in ("kept", "emptied")}
    more = {name: resume(folder / name, "--set", "run.total_env_steps=2048") for name in halves}
    for name, started in more.items():
        with started as run:
            ended[name] = run.end().finished()
    return ended, halves


@pytest.mark.parametrize("name", ["without prefetch", "local", "in a file"])
def test_weights_are_the_same_however_batches_are_drawn_and_actions_made(dqn, name):
    ended, _ = dqn
    assert ended[name].summary["weights_sha256"] == ended["straight"].summary["weights_sha256"]


def test_updates_are_those_that_the_ratio_pays_for(dqn):
    summary = dqn[0]["straight"].summary
    assert summary["updates"] == (summary["env_steps"] - 256) // 4


def test_run_resumed_with_its_replay_ends_with_the_weights_of_a_straight_one(dqn):
    """Case C07 (a): size, pointers, priorities, draws, and with them everything that is learned."""
    ended, halves = dqn
    assert 1024 <= halves["kept"]["env_steps"] < 2048
    for figure in ("weights_sha256", "env_steps", "updates", "episodes", "return_mean", "policy_version"):
        assert ended["kept"].summary[figure] == ended["straight"].summary[figure], figure
    assert "the replay goes on with the" in ended["kept"].stdout


def test_run_resumed_without_its_replay_fills_it_first_and_makes_no_burst_of_updates(dqn):
    """Case C07 (b)."""
    ended, halves = dqn
    first, whole = halves["emptied"], ended["emptied"].summary
    collected = whole["env_steps"] - first["env_steps"]
    assert whole["updates"] - first["updates"] == (collected - 256) // 4
    assert "the replay begins empty (replay.save is off)" in ended["emptied"].stdout
    points = [step for step, _ in scalars(ended["emptied"].folder)["loss/td_error_mean"]]
    assert not [step for step in points if first["env_steps"] < step < first["env_steps"] + 256]


def test_saved_replay_is_that_of_the_checkpoints_step(dqn):
    """Case C07: one file, so that no kill comes between the two."""
    checkpoint, *_ = CheckpointStore.load(dqn[0]["straight"].checkpoints[-1])
    assert checkpoint["training"]["ratio"]["filled"] == checkpoint["env_steps"]


def test_sac_is_reproducible_and_goes_on_exactly(tmp_path):
    runs = {
        "straight": {**SAC, "run.total_env_steps": 1536, "replay.save": True},
        "again": {**SAC, "run.total_env_steps": 1536, "replay.prefetch": False},
        "halves": {**SAC, "run.total_env_steps": 768, "replay.save": True},
    }
    ended = {name: run.finished() for name, run in train_all(tmp_path, runs).items()}
    with resume(tmp_path / "halves", "--set", "run.total_env_steps=1536") as run:
        halves = run.end().finished()
    assert ended["straight"].summary["updates"] > 200
    for other in (ended["again"], halves):
        assert other.summary["weights_sha256"] == ended["straight"].summary["weights_sha256"]


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3"])
def test_async_run_learns_and_may_run_ahead(tmp_path, algorithm):
    options = {**(DQN if algorithm == "dqn" else SAC), "pipeline.schedule": "async", "algo.name": algorithm}
    with train(tmp_path, {**options, "run.total_env_steps": 1024, "replay.ahead_env_steps": 200}) as run:
        summary = run.end().finished().summary
    paid = (summary["env_steps"] - 256) / 4
    assert paid - 8 <= summary["updates"] <= paid + 200 / 4


def test_killed_learner_fills_its_replay_again_and_the_run_ends_with_all_its_env_steps(tmp_path):
    options = {**DQN, "run.total_env_steps": 8_000, "checkpoint.every_env_steps": 1_000}
    with train(tmp_path, options) as run:
        until(lambda: run.ended_or(run.has_checkpoint), "a checkpoint")
        os.kill(run.children()["learner"].pid, signal.SIGKILL)
        ended = run.end().finished()
    assert ended.summary["env_steps"] >= 8_000
    assert ended.summary["restarts"] >= 1
    assert "the replay begins empty" in ended.stdout


def test_killed_learner_with_its_replay_saved_ends_with_the_weights_of_one_never_killed(tmp_path):
    """The actors are in another life then, but their envs go on where the checkpoint left them."""
    options = {**DQN, "run.total_env_steps": 6_000, "replay.save": True, "checkpoint.every_env_steps": 1_000}
    with train(tmp_path / "straight", options) as straight, train(tmp_path / "killed", options) as killed:
        until(lambda: killed.ended_or(killed.has_checkpoint), "a checkpoint")
        os.kill(killed.children()["learner"].pid, signal.SIGKILL)
        ended, whole = killed.end().finished(), straight.end().finished()
    assert ended.summary["restarts"] >= 1
    assert "the replay goes on with the" in ended.stdout
    assert ended.summary["weights_sha256"] == whole.summary["weights_sha256"]


def test_restarted_actor_does_not_join_its_first_episode_to_the_one_before(tmp_path):
    """What it left ends with the observation it stood on; the run goes on."""
    with train(tmp_path, {**DQN, **toy("Count", n=30, end="term"), "run.total_env_steps": 6_000}) as run:
        os.kill(run.wait_training()["actor-0"].pid, signal.SIGKILL)
        assert run.end().finished().summary["restarts"] >= 1


def test_replay_larger_than_memory_is_refused_at_once_with_both_numbers(tmp_path):
    """Case F03."""
    started = time.monotonic()
    with train(tmp_path, {**DQN, **toy("Still"), "replay.capacity": 1_000_000, "env.normalize_obs": False}) as run:
        ended = run.end()
        assert run.survivors() == []
    took_s = time.monotonic() - started
    assert ended.returncode == 2, ended.stderr
    assert "replay.capacity = 1,000,000 transitions need 26.3 GiB" in ended.stderr
    assert "GiB are available" in ended.stderr
    assert "replay.allow_overcommit = true" in ended.stderr
    assert not any((tmp_path / "runs").glob("*")), "nothing is left of it"
    assert took_s < 30, "before anything of it is touched"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env.normalize_reward": True}, "learns from stored rewards"),
        ({"replay.batch_size": 3_000}, "more than replay.capacity = 2000 ever holds"),
        ({"replay.learning_starts": 1_500, "run.total_env_steps": 1_024}, "leaves nothing to learn from"),
        ({"env.id": "Pendulum-v1"}, "needs one value for each action"),
        ({"algo.name": "sac"}, "sac"),
        ({"replay.capacity": 150, "replay.learning_starts": 100}, "leaves 19 rows for each of the 8 envs"),
    ],
)
def test_configuration_that_cannot_work_ends_in_one_sentence(tmp_path, options, message):
    kept = {k: v for k, v in DQN.items() if not (k.startswith("algo.dqn") and options.get("algo.name") == "sac")}
    with train(tmp_path, {**kept, **options}) as run:
        ended = run.end()
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert message in ended.stderr
