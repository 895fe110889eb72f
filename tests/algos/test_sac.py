"""Soft actor-critic: its step against one written out with autograd, temperature, entropy."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from rltrain.fields import ActionSpec
from tests.replayed import learned_gradient, replay_config, start, transitions
from tests.specs import BOX, env_spec

SPEC = env_spec(BOX)
STILL = {"learning_rate": 1e-30, "max_grad_norm": None}


def noise_of(state, num_rows=12):
    """Return the standard normal numbers that the next update is going to draw: of the target, of the actor."""
    generator = torch.Generator()
    generator.set_state(state.generator.get_state())
    return torch.randn((2, num_rows, 2), generator=generator)


def drawn(state, obs, normal):
    """Actions and log-densities in policy units, by torch's own distributions."""
    mean, log_std = state.model({"obs": obs}).chunk(2, 1)
    u = mean + log_std.exp() * normal
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
    action = squashed.transforms[0](u)
    return action, squashed.log_prob(action).sum(1)


def given_a_real_actor(state):
    """Let the actor's outputs differ from row to row; fresh ones hardly do."""
    state.model.layers.weight_2.data.mul_(60)


def test_target_and_error_of_each_transition_are_those_of_the_formula():
    state, update = start(replay_config("sac", {**STILL, "initial_temperature": 0.3}), SPEC)
    given_a_real_actor(state)
    batch = transitions(SPEC)
    with torch.no_grad():
        action, log_prob = drawn(state, batch["next_obs"], noise_of(state)[0])
        q = torch.minimum(*update.critics.target.network({"obs": batch["next_obs"]}, action))
        target = batch["return_"] + batch["discount"] * (q - 0.3 * log_prob)
        values = update.critics.critics({"obs": batch["obs"]}, batch["action"])
        errors = [(value - target).abs() for value in values]
    td_error, metrics = update(batch, 0.0)
    torch.testing.assert_close(td_error, (errors[0] + errors[1]) / 2, rtol=1e-4, atol=1e-5)
    loss = sum((batch["is_weight"] * error.square()).mean() / 2 for error in errors)
    assert metrics["critic_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["q_mean"].item() == pytest.approx(values[0].mean().item(), rel=1e-4)


def test_critics_gradient_is_that_of_the_weighted_squared_error():
    state, update = start(replay_config("sac", STILL), SPEC)
    batch = transitions(SPEC)
    with torch.no_grad():
        action, log_prob = drawn(state, batch["next_obs"], noise_of(state)[0])
        q = torch.minimum(*update.critics.target.network({"obs": batch["next_obs"]}, action))
        target = batch["return_"] + batch["discount"] * (q - log_prob)
    critics = update.critics.critics
    first, second = critics({"obs": batch["obs"]}, batch["action"])
    loss = (batch["is_weight"] * ((first - target).square() + (second - target).square()) / 2).mean()
    expected = torch.autograd.grad(loss, list(critics.parameters()))
    update(batch, 0.0)
    found = [p.grad for p in critics.parameters()]
    torch.testing.assert_close(found, list(expected), rtol=1e-3, atol=1e-6)


def test_actors_gradient_is_that_of_the_soft_value_of_the_smaller_critic():
    state, update = start(replay_config("sac", {**STILL, "initial_temperature": 0.3}), SPEC)
    given_a_real_actor(state)
    update.critics.critics.second.bias_2.data.add_(0.6)  # so that each is the smaller one for some
    batch = transitions(SPEC)
    action, log_prob = drawn(state, batch["obs"], noise_of(state)[1])
    values = update.critics.critics({"obs": batch["obs"]}, action)
    assert 0 < (values[0] < values[1]).sum() < 12
    loss = (0.3 * log_prob - torch.minimum(*values)).mean()
    expected = torch.autograd.grad(loss, list(state.model.parameters()))
    _, metrics = update(batch, 0.0)
    found = [p.grad for p in state.model.parameters()]
    torch.testing.assert_close(found, list(expected), rtol=1e-3, atol=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["entropy"].item() == pytest.approx(-log_prob.mean().item(), rel=1e-4)


def test_actors_step_computes_no_gradient_of_the_critics():
    state, update = start(replay_config("sac", STILL), SPEC)
    batch = transitions(SPEC)
    update(batch, 0.0)
    before = learned_gradient(state, update)
    update._improve({"obs": batch["obs"]}, torch.ones(1), torch.randn(12, 2), 1e-30)
    assert torch.equal(before, learned_gradient(state, update))


@pytest.mark.parametrize(("option", "expected"), [("auto", -2.0), (0.7, 0.7)])
def test_target_entropy_is_minus_the_number_of_components_unless_said(option, expected):
    _, update = start(replay_config("sac", {"target_entropy": option}), SPEC)
    assert update.target_entropy == expected


@pytest.mark.parametrize(("target", "is_raised"), [(-30.0, False), (30.0, True)])
def test_temperature_rises_while_the_entropy_is_below_its_target(target, is_raised):
    _, update = start(replay_config("sac", {"target_entropy": target, "learning_rate": 1e-2}), SPEC)
    for i in range(5):
        _, metrics = update(transitions(SPEC, i), 0.0)
    # Adam's first steps have the size of the learning rate whatever the gradient's
    assert metrics["temperature"].item() == pytest.approx(math.exp(0.04 if is_raised else -0.04), abs=1e-3)


def test_fixed_temperature_stays():
    _, update = start(replay_config("sac", {"learn_temperature": False, "initial_temperature": 0.2}), SPEC)
    for i in range(3):
        _, metrics = update(transitions(SPEC, i), 0.0)
    assert metrics["temperature"].item() == pytest.approx(0.2)


def test_bounds_of_the_env_change_nothing():
    """Case N09: the log-density of the env's action is shifted, and with it the target entropy."""
    found = []
    for half_width in (1.0, 50.0):
        action = ActionSpec("box", (2,), "float32", low=(-half_width,) * 2, high=(half_width,) * 2)
        state, update = start(replay_config("sac"), env_spec(action))
        for i in range(3):
            _, metrics = update(transitions(env_spec(action), i), 0.0)
        found.append((state.flat.hash(), metrics["entropy"].item()))
    assert found[0] == found[1]


def test_targets_follow_in_each_update():
    _, update = start(replay_config("sac", {"target_tau": 0.25, "learning_rate": 1e-2}), SPEC)
    before = update.critics.target.flat.flat.clone()
    update(transitions(SPEC), 0.0)
    expected = before.lerp(update.critics.flat.flat, 0.25)
    torch.testing.assert_close(update.critics.target.flat.flat, expected)
    assert not torch.equal(before, expected)


def test_critics_and_actor_begin_with_different_numbers():
    state, update = start(replay_config("sac", run={"seed": 4}), SPEC)
    first, second = update.critics.critics.first.weight_0, update.critics.critics.second.weight_0
    assert not torch.equal(first, second)
    of_the_actors_numbers = state.model.make_critics(torch.Generator().manual_seed(4))
    assert not torch.equal(first, of_the_actors_numbers.first.weight_0)


def test_model_acts_at_random_in_warm_up_only():
    state, update = start(replay_config("sac"), SPEC)
    obs, uniform = {"obs": torch.zeros(3, 4)}, torch.tensor([[0.25, 0.75]]).repeat(3, 1)
    update.set_exploration(0.0, True)
    assert state.model.policy(obs).sample(uniform).tolist() == [[-0.5, 0.5]] * 3
    update.set_exploration(0.0, False)
    assert state.model.policy(obs).sample(uniform).tolist() != [[-0.5, 0.5]] * 3


def test_best_action_of_a_bandit_is_found_with_the_wanted_entropy():
    settings = replay_config(
        "sac", {"learning_rate": 1e-2, "initial_temperature": 0.05}, model={"hidden_sizes": (64, 64)}
    )
    state, update = start(settings, SPEC)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        action = torch.rand(64, 2, generator=generator) * 2 - 1
        goal = torch.tensor([0.4, -0.6])
        obs = torch.zeros(64, 4)
        _, metrics = update({
            "obs": obs, "next_obs": obs, "action": action, "return_": -5 * (action - goal).square().sum(1),
            "discount": torch.zeros(64), "is_weight": torch.ones(64),
        }, 0.0)  # fmt: skip
    chosen = state.model.policy({"obs": torch.zeros(1, 4)}).mode()
    torch.testing.assert_close(chosen, torch.tensor([[0.4, -0.6]]), rtol=0, atol=0.15)
    assert metrics["entropy"].item() == pytest.approx(-2.0, abs=0.5)
