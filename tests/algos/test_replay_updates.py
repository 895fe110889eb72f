"""What every update from replay must keep; runs over all algorithms that learn from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rltrain.telemetry.metrics import metric_for
from tests.replayed import (
    LEAVES,
    REPLAY_ALGORITHMS,
    all_weights,
    learned_gradient,
    replay_config,
    spec_for,
    start,
    transitions,
)

STILL = {"learning_rate": 1e-30, "max_grad_norm": None}
"""Gradients as they are, and weights that do not move."""


def updated(settings, num_updates=4, seed=0, progress=0.0):
    state, update = start(settings)
    spec = spec_for(settings.algo.name)
    for i in range(num_updates):
        td_error, metrics = update(transitions(spec, seed + i), progress)
    return state, update, td_error, metrics


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
@pytest.mark.parametrize("leaves", LEAVES)
def test_update_moves_all_that_is_trained_and_returns_what_it_promises(name, leaves):
    spec = spec_for(name, *LEAVES[leaves])
    state, update = start(replay_config(name), spec)
    before = all_weights(state, update)
    for i in range(2):
        td_error, metrics = update(transitions(spec, seed=i), 0.0)
        assert td_error.shape == (12,)
        assert td_error.dtype == torch.float32
        assert not td_error.requires_grad
    assert all(m.shape == () and torch.isfinite(m) for m in metrics.values()), metrics
    assert [n for n in metrics if metric_for(f"loss/{n}") is None] == []
    assert state.updates == 2
    assert state.bad_updates == 0
    after = all_weights(state, update)
    still = {n for n in after if torch.equal(before[n], after[n])}
    assert still <= ({"target"} if name == "dqn" else set())  # DQN's target network holds still for long


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_doubled_weight_doubles_the_gradient_of_that_item_and_leaves_its_error(name):
    """Case N06."""
    gradients, errors = [], []
    for weight in (0.0, 1.0, 2.0):
        state, update = start(replay_config(name, STILL))
        batch = transitions(spec_for(name))
        batch["is_weight"][3] = weight
        td_error, _ = update(batch, 0.0)
        gradients.append(learned_gradient(state, update).double())
        errors.append(td_error)
    of_item = gradients[1] - gradients[0]
    assert of_item.abs().max() > 1e-4
    torch.testing.assert_close(gradients[2] - gradients[0], 2 * of_item, rtol=1e-3, atol=1e-6)
    assert torch.equal(errors[0], errors[1])
    assert torch.equal(errors[1], errors[2])


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_nothing_behind_a_termination_counts(name):
    """Case E01: what comes after it must not matter, what comes after a truncation must."""
    results = []
    for behind in (0.0, 5.0):
        _state, update = start(replay_config(name, STILL))
        batch = transitions(spec_for(name))
        batch["discount"] = torch.tensor([0.0, 0.99]).repeat(6)
        batch["next_obs"] = torch.full_like(batch["next_obs"], behind)
        results.append(update(batch, 0.0)[0])
    assert torch.equal(results[0][::2], results[1][::2])
    assert (results[0][1::2] != results[1][1::2]).all()


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_same_seed_gives_the_same_weights_whatever_the_global_generator(name):
    """Case S02."""
    found = []
    for seed, noise in ((5, 1), (5, 2), (6, 1)):
        torch.manual_seed(noise)
        state, update, *_ = updated(replay_config(name, run={"seed": seed}))
        found.append(torch.cat([x.flatten().float() for x in all_weights(state, update).values()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_restored_state_continues_to_the_same_weights(name, tmp_path):
    """Case C05, through the loader that takes tensors only."""
    settings = replay_config(name, {"actor_every_updates": 2} if name == "td3" else {}, env={"normalize_obs": True})
    spec = spec_for(name)

    def train(state, update, seeds):
        for seed in seeds:
            batch = transitions(spec, seed)
            update(batch, 0.0)
            state.model.update_statistics({"obs": batch["obs"]})

    straight, update = start(settings)
    train(straight, update, range(6))
    first, first_update = start(settings)
    train(first, first_update, range(3))
    torch.save((first.state_dict(), first_update.state_dict()), tmp_path / "saved")
    second, second_update = start(settings)
    torch.manual_seed(123)
    saved = torch.load(tmp_path / "saved", weights_only=True)
    second.load_state_dict(saved[0])
    second_update.load_state_dict(saved[1])
    train(second, second_update, range(3, 6))
    assert second.updates == straight.updates == 6
    assert second.flat.hash() == straight.flat.hash()
    one, other = all_weights(straight, update), all_weights(second, second_update)
    assert [n for n in one if not torch.equal(one[n], other[n])] == []


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_state_dict_holds_copies(name):
    _state, update = start(replay_config(name, {"target_tau": 1.0}))
    kept = update.state_dict()
    copies = {n: x.clone() for n, x in kept.items()}
    for i in range(3):
        update(transitions(spec_for(name), i), 0.0)
    assert [n for n in kept if not torch.equal(kept[n], copies[n])] == []


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_non_finite_reward_skips_the_update_and_counts_it(name):
    """Case N07."""
    state, update = start(replay_config(name))
    spec = spec_for(name)
    learned = state.flat.flat if name == "dqn" else update.critics.flat.flat
    before = learned.clone()
    bad = transitions(spec)
    bad["return_"][2] = float("nan")
    td_error, _ = update(bad, 0.0)
    assert torch.isnan(td_error[2])
    assert torch.isfinite(td_error[:2]).all()
    assert torch.equal(learned, before)
    assert (state.updates, state.bad_updates, state.bad_updates_in_a_row) == (1, 1, 1)
    update(transitions(spec), 0.0)
    assert (state.updates, state.bad_updates, state.bad_updates_in_a_row) == (2, 1, 0)
    assert not torch.equal(learned, before)
    finite = (x for x in all_weights(state, update).values() if x.is_floating_point())
    assert all(torch.isfinite(x).all() for x in finite)


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_non_finite_observation_leaves_actor_and_critics_alone(name):
    """Case N07."""
    state, update = start(replay_config(name, {"actor_every_updates": 1} if name == "td3" else {}))
    before = all_weights(state, update)
    bad = transitions(spec_for(name))
    bad["obs"][0, 0] = float("inf")
    update(bad, 0.0)
    after = all_weights(state, update)
    assert state.bad_updates == 1
    assert [n for n in after if "target" not in n and not torch.equal(before[n], after[n])] == []


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_learning_rate_follows_the_progress(name):
    """Case C08."""
    options = {"learning_rate": 3e-4, "learning_rate_end": 0.0}
    *_, metrics = updated(replay_config(name, options), progress=0.4)
    assert metrics["learning_rate"].item() == pytest.approx(1.8e-4)
    state, update = start(replay_config(name, options))
    before = state.flat.flat.clone()
    update(transitions(spec_for(name)), 1.0)
    assert torch.equal(before, state.flat.flat)


OPTIONS = {
    "dqn": [("double", False), ("dueling", True), ("loss", "squared"), ("target_every_updates", 1)],
    "sac": [("learn_temperature", False), ("target_entropy", 3.0), ("initial_temperature", 0.1), ("target_tau", 0.5)],
    "td3": [("target_noise", 0.9), ("target_noise_clip", 0.01), ("actor_every_updates", 1), ("target_tau", 0.5)],
}
SHARED = [("adam_eps", 1.0), ("adam_beta1", 0.1), ("adam_beta2", 0.1), ("max_grad_norm", 1e-3)]


@pytest.mark.parametrize(
    ("name", "option", "value"), [(name, *pair) for name, pairs in OPTIONS.items() for pair in pairs + SHARED]
)
def test_option_changes_the_weights(name, option, value):
    """Case C11."""
    results = []
    for options in ({}, {option: value}):
        state, _update, *_ = updated(replay_config(name, {"learning_rate": 1e-2, **options}))
        results.append(state.flat.hash())
    assert results[0] != results[1]


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_targets_see_observations_normalised_as_the_policy_does(name):
    """Case C06: scaled observations under scaled statistics give the same errors."""
    errors = []
    for scale in (1.0, 1000.0):
        state, update = start(replay_config(name, env={"normalize_obs": True}))
        batch = transitions(spec_for(name))
        batch = {n: x * scale if "obs" in n else x for n, x in batch.items()}
        state.model.update_statistics({"obs": torch.cat([batch["obs"], batch["next_obs"]])})
        errors.append(update(batch, 0.0)[0])
    torch.testing.assert_close(*errors, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_bfloat16_keeps_weights_float32_and_learns(name):
    state, _update, td_error, metrics = updated(replay_config(name, learner={"precision": "bfloat16"}))
    assert all(m.dtype == torch.float32 for m in (td_error, *metrics.values()))
    assert state.flat.flat.dtype == torch.float32
    _, _, exact, _ = updated(replay_config(name))
    torch.testing.assert_close(td_error, exact, rtol=0.1, atol=0.1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_an_update_does_not_load_the_compiler(name):
    code = (
        "import sys; from tests.replayed import *;"
        f"state, update = start(replay_config({name!r})); update(transitions(spec_for({name!r})), 0.0);"
        "loaded = [m for m in sys.modules if m == 'torch._dynamo' or m.startswith('torch._inductor.')];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler looks at it
@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_compiled_networks_give_the_same(name, monkeypatch):
    from functools import partial

    from torch._dynamo.testing import CompileCounter

    from rltrain.models import compile_model

    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    results = []
    for is_compiled in (False, True):
        settings = replay_config(name, learner={"compile": is_compiled})
        monkeypatch.setattr("tests.replayed.build_model", _building(compile_model if is_compiled else lambda m: None))
        state, update = start(settings)
        for i in range(2):
            td_error, _ = update(transitions(spec_for(name), i), 0.0)
        results.append((td_error, state.flat.flat.clone()))
    assert counter.frame_count >= 3
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


def _building(then):
    from rltrain.models import build_model

    def build(*arguments):
        model = build_model(*arguments)
        then(model)
        return model

    return build
