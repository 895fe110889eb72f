"""The conventional loop: the same arithmetic as a run, its figures, its ends, its refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from rltrain import native
from rltrain.bench import conventional as conventional_module
from rltrain.bench.conventional import ConventionalLoop, conventional
from rltrain.bench.trial import TrialError, run_trial
from rltrain.config.load import load
from rltrain.errors import ConfigError
from rltrain.models import native_layers

ROOT = Path(__file__).parents[2]
CARTPOLE = ROOT / "configs/cartpole.toml"
ONE_GROUP = {"actors.num_actors": 1, "actors.groups_per_actor": 1, "actors.envs_per_group": 16}


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums come in another order with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loop_of(**overrides: object) -> ConventionalLoop:
    sets = [f"{path.replace('__', '.')}={json.dumps(value)}" for path, value in overrides.items()]
    return ConventionalLoop(load(CARTPOLE, [*sets, "learner.device=cpu"]).config)


def test_loop_ends_with_the_weights_of_a_sync_run():
    steps = 6_000
    options = {**ONE_GROUP, "pipeline.schedule": "sync", "learner.device": "cpu", "learner.num_threads": 1}
    trial = run_trial(CARTPOLE, {**options, "run.total_env_steps": steps}, None, is_endless=False)
    config = load(CARTPOLE, [f"{k}={json.dumps(v)}" for k, v in {**options, "run.total_env_steps": steps}.items()])
    loop = ConventionalLoop(config.config)
    loop.run(60)
    loop.close()
    assert loop.env_steps == trial.summary["env_steps"] >= steps
    assert loop.state.flat.hash() == trial.summary["weights_sha256"]


def test_loop_counts_no_resets_and_learns_at_least_twice():
    loop = loop_of(run__total_env_steps=10**9)
    figures = loop.run(0)
    loop.close()
    assert loop.num_batches == 2
    rows = 2 * loop.length * loop.group.num_envs
    assert 0.8 * rows < loop.env_steps < rows, "CartPole's episodes end after about 20 env steps at first"
    assert loop.env_steps == sum(loop.episodes.lengths) + open_steps_of(loop)
    assert 0 < figures["update_share"] < figures["busy_share"] < 1
    assert figures["env_steps_per_s"] > 0
    assert figures["seconds_to_target"] is None


def open_steps_of(loop: ConventionalLoop) -> int:
    """Env steps of the episodes that have not ended, by the envs' own count of rows."""
    episodes = loop.group._episodes
    return int((episodes.num_rows - episodes.begun_at)[~episodes.ended].sum())


def test_process_ends_at_the_target_and_says_when():
    overrides = {"run.target_return": 15.0, "run.target_window": 5, "learner.device": "cpu"}
    figures = conventional(CARTPOLE, overrides, 60, 1, to_target=True)
    assert 0 < figures["seconds_to_target"] < 60
    assert figures["return_mean"] >= 15


@pytest.mark.parametrize("is_plain", [False, True])
def test_plain_loop_has_neither_layers_in_c_nor_memory_of_its_own(is_plain, monkeypatch, capsys):
    used = []
    monkeypatch.setattr(native_layers, "LARGEST_LAYER", native_layers.LARGEST_LAYER)  # put back at the end
    monkeypatch.setattr(native_layers, "_call", lambda function, *_: used.append(function))
    monkeypatch.setattr(native, "keep_memory", lambda: used.append("memory"))
    arguments = [str(CARTPOLE), "--seconds", "0.1", "--threads", "1", "--set", "run.target_return=none"]
    monkeypatch.setattr(sys, "argv", ["conventional", *arguments, *(["--plain"] if is_plain else [])])
    assert conventional_module.main() == 0
    assert json.loads(capsys.readouterr().out)["env_steps_per_s"] > 0
    assert bool(used) != is_plain


def test_replay_algorithm_is_refused_with_what_is_accepted():
    with pytest.raises(ConfigError, match=r'algo.name = "dqn" learns from a replay.*Accepted: "ppo" and "appo"'):
        ConventionalLoop(load(ROOT / "configs/dqn_cartpole.toml").config)


def test_failed_process_is_told_with_its_last_lines():
    with pytest.raises(TrialError, match=r"exit code 2:\n(?s:.*)env.id = 'Nothing-v0'"):
        conventional(CARTPOLE, {"env.id": "Nothing-v0"}, 1, 1)
