"""PPO: its two ways through a batch, and its own options."""

from __future__ import annotations

import pytest
import torch

from tests.learning import LANES, NUM_COLUMNS, NUM_STEPS, config, on_policy_batch, start, weights_of


def test_one_epoch_of_one_minibatch_equals_autograd_of_the_paper():
    """One step of plain gradient maths: advantages, clipped loss, value loss, entropy, all by autograd."""
    settings = config("ppo", {"epochs": 1, "num_minibatches": 1, "max_grad_norm": None})
    state, update = start(settings)
    batch = on_policy_batch(state.model)
    batch["behaviour_logp"] = batch["behaviour_logp"] + 0.5 * torch.randn(NUM_STEPS + 1, NUM_COLUMNS)
    reference, _ = start(settings)

    obs = batch["obs"].flatten(0, 1)
    policy, value = reference.model.policy_and_value({"obs": obs}, NUM_STEPS * NUM_COLUMNS)
    value = value.view(NUM_STEPS + 1, NUM_COLUMNS)
    advantage = torch.zeros(NUM_STEPS, NUM_COLUMNS)
    following = torch.zeros(NUM_COLUMNS)
    for t in reversed(range(NUM_STEPS)):
        bootstrap = torch.where(batch["terminated"][t], 0, value[t + 1].detach())
        ended = batch["terminated"][t] | batch["truncated"][t]
        delta = batch["reward"][t] + 0.99 * bootstrap - value[t].detach()
        following = torch.where(batch["valid"][t], delta + torch.where(ended, 0, 0.99 * 0.95 * following), 0)
        advantage[t] = following
    valid = batch["valid"][:-1]
    target = (advantage + value[:-1].detach())[valid]
    a = advantage[valid]
    a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
    log_prob = policy.log_prob(batch["action"][:-1].flatten()).view_as(advantage)[valid]
    ratio = (log_prob - batch["behaviour_logp"][:-1][valid]).exp()
    policy_loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
    value_loss = (value[:-1][valid] - target).square().mean()
    entropy = policy.entropy().view_as(advantage)[valid].mean()
    reference.flat.grad.zero_()
    (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()

    metrics = update(state, batch, 0.0, LANES)
    torch.testing.assert_close(state.flat.grad, reference.flat.grad, rtol=1e-4, atol=1e-6)
    assert metrics["policy_loss"].item() == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["value_loss"].item() == pytest.approx(value_loss.item(), rel=1e-4)
    assert metrics["entropy"].item() == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["clip_fraction"].item() == pytest.approx(((ratio - 1).abs() > 0.2).float().mean().item(), abs=1e-6)
    kl = ((ratio - 1) - ratio.log()).mean()
    assert metrics["approx_kl"].item() == pytest.approx(kl.item(), rel=1e-3)
    explained = 1 - (target - value[:-1][valid]).var(correction=0) / target.var(correction=0)
    assert metrics["explained_variance"].item() == pytest.approx(explained.item(), abs=1e-4)


def test_first_minibatch_of_shuffled_rows_equals_that_of_whole_columns():
    """With one minibatch, both ways compute the same gradient."""
    gradients = []
    for epochs in (1, 2):
        state, update = start(config("ppo", {"epochs": epochs, "num_minibatches": 1, "learning_rate": 1e-30}))
        update(state, on_policy_batch(state.model), 0.0, LANES)
        gradients.append(state.flat.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-7)


def test_target_kl_leaves_the_remaining_epochs():
    updates = []
    for target_kl in (1e-9, 1e9):
        options = {"epochs": 5, "num_minibatches": 2, "target_kl": target_kl, "learning_rate": 1e-2}
        state, update = start(config("ppo", options))
        update(state, on_policy_batch(state.model), 0.0, LANES)
        updates.append(state.updates)
    assert updates == [2, 10]


@pytest.mark.parametrize(("option", "value"), [("gae_lambda", 0.1), ("clip_range", 1e-3), ("clip_range_value", 1e-3)])
def test_own_option_changes_the_weights(option, value):
    """Case C11."""
    results = []
    for options in ({"learning_rate": 1e-2}, {"learning_rate": 1e-2, option: value}):
        state, update = start(config("ppo", options))
        update(state, on_policy_batch(state.model), 0.0, LANES)
        results.append(weights_of(state))
    assert not torch.equal(*results)


def test_more_minibatches_than_rows_or_columns_still_learns():
    for epochs in (1, 2):
        state, update = start(config("ppo", {"epochs": epochs, "num_minibatches": 1000}))
        before = weights_of(state)
        update(state, on_policy_batch(state.model), 0.0, LANES)
        assert state.bad_updates == 0
        assert not torch.equal(before, state.flat.flat)
