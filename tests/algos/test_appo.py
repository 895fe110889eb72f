"""APPO: V-trace targets, with and without the clip."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.returns import vtrace
from tests.learning import LANES, NUM_COLUMNS, NUM_STEPS, config, on_policy_batch, start, weights_of


def off_policy_batch(model) -> dict[str, torch.Tensor]:
    batch = on_policy_batch(model)
    shift = torch.randn(NUM_STEPS + 1, NUM_COLUMNS, generator=torch.Generator().manual_seed(9))
    batch["behaviour_logp"] = batch["behaviour_logp"] + 0.5 * shift
    return batch


@pytest.mark.parametrize("clip_range", [None, 0.2], ids=["impala", "appo"])
def test_one_minibatch_equals_autograd_of_the_papers(clip_range):
    settings = config("appo", {"clip_range": clip_range, "max_grad_norm": None, "normalize_advantage": False})
    state, update = start(settings)
    batch = off_policy_batch(state.model)
    reference, _ = start(settings)
    policy, value = reference.model.policy_and_value({"obs": batch["obs"].flatten(0, 1)}, NUM_STEPS * NUM_COLUMNS)
    value = value.view(NUM_STEPS + 1, NUM_COLUMNS)
    log_prob = policy.log_prob(batch["action"][:-1].flatten()).view(NUM_STEPS, NUM_COLUMNS)
    log_ratio = log_prob - batch["behaviour_logp"][:-1]
    flags = {name: batch[name][:-1] for name in ("terminated", "truncated", "valid")}
    target, advantage = vtrace(log_ratio.detach(), batch["reward"][:-1], value.detach(), discount=0.99, **flags)
    ratio = log_ratio.exp()
    if clip_range is None:
        loss = -(ratio.detach().clamp(max=1) * advantage * log_prob)
    else:
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    loss = loss + 0.5 * (value[:-1] - target).square() - 0.01 * policy.entropy().view_as(loss)
    reference.flat.grad.zero_()
    loss[flags["valid"]].mean().backward()
    metrics = update(state, batch, 0.0, LANES)
    torch.testing.assert_close(state.flat.grad, reference.flat.grad, rtol=1e-4, atol=1e-6)
    assert metrics["ratio_deviation"].item() > 0.1


def test_clip_fraction_without_a_clip_is_zero():
    state, update = start(config("appo", {"clip_range": None}))
    assert update(state, off_policy_batch(state.model), 0.0, LANES)["clip_fraction"].item() == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("clip_range", 1e-3), ("vtrace_rho_clip", 0.1), ("vtrace_c_clip", 0.1), ("vtrace_lambda", 0.1), ("epochs", 2)],
)
def test_own_option_changes_the_weights(option, value):
    """Case C11."""
    results = []
    for options in ({}, {option: value}):
        state, update = start(config("appo", options))
        update(state, off_policy_batch(state.model), 0.0, LANES)
        results.append(weights_of(state))
    assert not torch.equal(*results)
