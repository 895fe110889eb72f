"""Whole runs on a device, and the same on the CPU: they learn, repeat bit for bit, and fork what uses the device."""

from __future__ import annotations

import pytest

from tests.devices import CUDA, DEVICES
from tests.runs import train, train_all

pytestmark = pytest.mark.timeout(300)

SLOW_ON_CPU = [pytest.param("cpu", id="cpu", marks=pytest.mark.slow), CUDA]
LEARNS = {
    "run.total_env_steps": 500_000, "run.target_return": 475.0, "run.seed": 1, "actors.num_actors": 1,
    "actors.envs_per_group": 16, "pipeline.fragment_length": 32, "model.hidden_sizes": [64, 64],
    "algo.ppo.learning_rate": 3e-3, "algo.ppo.discount": 0.98, "algo.ppo.gae_lambda": 0.9,
    "algo.ppo.entropy_coef": 0.0, "algo.ppo.epochs": 4, "algo.ppo.num_minibatches": 4,
}  # fmt: skip
"""As `configs/cartpole.toml`."""
REPEATED = {"run.total_env_steps": 20_000, "env.normalize_obs": True, "env.normalize_reward": True, "run.seed": 3}


@pytest.mark.parametrize("device", SLOW_ON_CPU)
def test_run_with_learner_and_server_on_a_device_learns_to_balance(tmp_path, device):
    """Seconds on the CPU, half a minute on a device."""
    with train(tmp_path, {**LEARNS, "learner.device": device}) as run:
        ended = run.end().finished()
    assert ended.summary["reason"] == "target"
    assert ended.summary["device"] == device
    assert "CUDA graphs" not in ended.stdout + ended.stderr, "a warning that there are none"
    assert ended.summary["bad_updates"] == 0


@pytest.mark.parametrize("device", SLOW_ON_CPU)
@pytest.mark.parametrize("schedule", ["sync", "overlap"])
def test_run_on_a_device_made_twice_ends_with_the_same_weights(tmp_path, schedule, device):
    """Half a minute on a device."""
    options = {**REPEATED, "pipeline.schedule": schedule, "learner.device": device}
    other = {"actors.num_actors": 1, "actors.groups_per_actor": 4}
    runs = {"one": options, "two": options, "spread otherwise": options | other, "seed": options | {"run.seed": 4}}
    ended = train_all(tmp_path, runs)
    hashes = {name: run.finished().summary["weights_sha256"] for name, run in ended.items()}
    assert hashes["one"] == hashes["two"] == hashes["spread otherwise"] != hashes["seed"]


@pytest.mark.parametrize("device", DEVICES)
def test_envs_and_evaluations_use_a_device_in_forked_processes(tmp_path, device):
    """A process that is forked from one that has used CUDA cannot use it."""
    options = {
        "env.id": "tests.device_envs:OnDevice", "env.kwargs.device": device, "learner.device": device,
        "eval.every_env_steps": 256, "eval.episodes": 2, "run.total_env_steps": 2048,
    }  # fmt: skip
    with train(tmp_path, options) as run:
        ended = run.end().finished()
    assert ended.summary["evaluation"]["eval/return_mean"] == 20
    assert "re-initialize CUDA" not in ended.stdout + ended.stderr + "".join(map(ended.log, ("actor-0", "evaluator")))


@pytest.mark.parametrize("device", [CUDA])
def test_server_on_the_cpu_beside_a_learner_on_a_device(tmp_path, device):
    with train(tmp_path, {"learner.device": device, "pipeline.inference_device": "cpu"}) as run:
        assert run.end().finished().summary["device"] == device
