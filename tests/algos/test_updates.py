"""What every update on fresh trajectories must keep; runs over all files that define one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rltrain.algos
from rltrain.config.algorithms import AlgoSection
from tests.learning import LANES, config, on_policy_batch, start, weights_of
from tests.specs import ALL_ACTIONS, env_spec

ALL = sorted(
    path.stem for path in Path(rltrain.algos.__file__).parent.glob("*.py") if "def make_update" in path.read_text()
)
LEARNING = [name for name in ALL if name != "null"]
ALGORITHMS = [name for name in LEARNING if AlgoSection.model_fields[name].default.source == "fresh"]
METRICS = {
    "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm",
    "ratio_deviation", "learning_rate", "entropy_coef",
}
VARIANTS = [
    pytest.param(name, {"epochs": epochs, "num_minibatches": parts}, id=f"{name}-{epochs}x{parts}")
    for name in ALGORITHMS
    for epochs, parts in ((1, 1), (1, 3), (2, 3))
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda a: f"{a.kind}{len(a.nvec)}")
def test_first_minibatch_of_on_policy_data_has_ratio_one(name, options, action):
    """Case N10."""
    spec = env_spec(action)
    state, update = start(config(name, options), spec)
    before = weights_of(state)
    for i in range(3):
        metrics = update(state, on_policy_batch(state.model, spec, seed=i), 0.0, LANES)
        assert set(metrics) == METRICS
        assert all(m.shape == () and torch.isfinite(m) for m in metrics.values()), metrics
        assert metrics["ratio_deviation"].item() < 1e-5
    assert not torch.equal(before, state.flat.flat)
    assert state.updates == 3 * options["epochs"] * options["num_minibatches"]
    assert state.bad_updates == 0


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_rows_that_are_not_valid_change_nothing(name, options):
    """Case E03."""
    results = []
    for fill in (0.0, 1e4):
        state, update = start(config(name, options))
        batch = on_policy_batch(state.model)
        invalid = ~batch["valid"]
        invalid[-1] = True  # the last row has no action: only its observation counts
        assert invalid[:-1].any()
        batch["reward"][invalid] = fill
        batch["behaviour_logp"][invalid] = -fill / 1e3
        batch["action"][invalid] = 1 if fill else 0
        update(state, batch, 0.0, LANES)
        results.append(weights_of(state))
    assert torch.equal(*results)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_same_seed_gives_the_same_weights(name, options):
    """Case S02."""
    hashes = []
    for seed in (5, 5, 6):
        state, update = start(config(name, options, run={"seed": seed}))
        update(state, on_policy_batch(state.model), 0.0, LANES)
        hashes.append(state.flat.hash())
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_restored_state_continues_to_the_same_weights(name, options):
    """Case C05."""
    settings = config(name, options, env={"normalize_obs": True, "normalize_reward": True})
    straight, update = start(settings)
    batches = [on_policy_batch(straight.model, seed=i) for i in range(4)]
    for batch in batches:
        update(straight, batch, 0.0, LANES)
    first, update = start(settings)
    for batch in batches[:2]:
        update(first, batch, 0.0, LANES)
    second, update = start(settings)
    torch.manual_seed(123)
    second.load_state_dict(first.state_dict())
    for batch in batches[2:]:
        update(second, batch, 0.0, LANES)
    assert second.flat.hash() == straight.flat.hash()
    assert second.updates == straight.updates


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_non_finite_reward_skips_the_update_and_counts_it(name, options):
    """Case N07."""
    state, update = start(config(name, options))
    bad = on_policy_batch(state.model)
    bad["reward"][:-1][bad["valid"][:-1]] = float("nan")
    before = weights_of(state)
    update(state, bad, 0.0, LANES)
    tried = options["epochs"] * options["num_minibatches"]
    assert torch.equal(before, state.flat.flat)
    assert (state.bad_updates, state.bad_updates_in_a_row) == (tried, tried)
    update(state, on_policy_batch(state.model), 0.0, LANES)
    assert (state.bad_updates, state.bad_updates_in_a_row) == (tried, 0)
    assert torch.isfinite(state.flat.flat).all()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_observation_statistics_learn_valid_rows_once_after_the_update(name):
    """Cases E03 and S03."""
    state, update = start(config(name, env={"normalize_obs": True}))
    batch = on_policy_batch(state.model)
    assert update(state, batch, 0.0, LANES)["ratio_deviation"].item() < 1e-5
    normaliser = state.model.normalisers.normalisers[0]
    rows = batch["obs"][:-1][batch["valid"][:-1]].double()
    assert normaliser.count.item() == len(rows)
    torch.testing.assert_close(normaliser.mean, rows.mean(0))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_schedules_follow_the_progress(name):
    """Cases C08 and C11."""
    options = {"learning_rate": 3e-4, "learning_rate_end": 0.0, "entropy_coef": 0.02, "entropy_coef_end": 0.0}
    state, update = start(config(name, options))
    metrics = update(state, on_policy_batch(state.model), 0.4, LANES)
    assert metrics["learning_rate"].item() == pytest.approx(1.8e-4)
    assert metrics["entropy_coef"].item() == pytest.approx(0.012)
    before = weights_of(state)
    update(state, on_policy_batch(state.model), 1.0, LANES)
    assert torch.equal(before, state.flat.flat)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("discount", 0.5), ("entropy_coef", 1.0), ("value_coef", 5.0), ("max_grad_norm", 1e-3),
        ("normalize_advantage", False), ("adam_eps", 1.0), ("adam_beta1", 0.1), ("adam_beta2", 0.1),
    ],
)
def test_option_changes_the_weights(name, option, value):
    """Case C11."""
    results = []
    for options in ({}, {option: value}):
        state, update = start(config(name, options))
        for i in range(2):
            update(state, on_policy_batch(state.model, seed=i), 0.0, LANES)
        results.append(weights_of(state))
    assert not torch.equal(*results)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_action_with_positive_advantage_becomes_likelier(name):
    state, update = start(config(name, {"learning_rate": 1e-2, "entropy_coef": 0.0, "discount": 0.0}))
    for i in range(20):
        batch = on_policy_batch(state.model, seed=i)
        batch["reward"] = batch["action"].float() * batch["valid"]
        update(state, batch, 0.0, LANES)
    with torch.no_grad():
        probability = state.model.policy({"obs": torch.randn(200, 4)}).log_prob(torch.ones(200).long()).exp()
    assert probability.mean() > 0.8


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bfloat16_keeps_weights_float32_and_learns(name):
    state, update = start(config(name, learner={"precision": "bfloat16"}))
    before = weights_of(state)
    metrics = update(state, on_policy_batch(state.model), 0.0, LANES)
    assert all(m.dtype == torch.float32 for m in metrics.values())
    assert state.flat.flat.dtype == torch.float32
    assert not torch.equal(before, state.flat.flat)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_does_not_load_the_compiler(name):
    code = (
        "import sys; from tests.learning import *;"
        f"state, update = start(config({name!r})); update(state, on_policy_batch(state.model), 0.0, LANES);"
        "loaded = [m for m in sys.modules if m == 'torch._dynamo' or m.startswith('torch._inductor.')];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])
