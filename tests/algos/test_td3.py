"""TD3: smoothed targets, the delayed actor, its step against one written out with autograd."""

from __future__ import annotations

import pytest
import torch

from tests.replayed import learned_gradient, replay_config, start, transitions
from tests.specs import BOX, env_spec

SPEC = env_spec(BOX)
STILL = {"learning_rate": 1e-30, "max_grad_norm": None}


def noise_of(state):
    """Return the standard normal numbers that the next update is going to draw."""
    generator = torch.Generator()
    generator.set_state(state.generator.get_state())
    return torch.randn((12, 2), generator=generator)


@pytest.mark.parametrize(("std", "clip"), [(0.2, 0.5), (2.0, 0.5), (2.0, 3.0), (0.0, 0.5)])
def test_target_is_the_smaller_critics_value_of_an_action_with_clipped_noise(std, clip):
    options = {**STILL, "target_noise": std, "target_noise_clip": clip}
    state, update = start(replay_config("td3", options), SPEC)
    state.model.layers.weight_2.data.mul_(100)  # the target actor stays near 0
    batch = transitions(SPEC)
    with torch.no_grad():
        noise = (std * noise_of(state)).clamp(-clip, clip)
        action = (update.target_actor.network({"obs": batch["next_obs"]}) + noise).clamp(-1, 1)
        q = torch.minimum(*update.critics.target.network({"obs": batch["next_obs"]}, action))
        target = batch["return_"] + batch["discount"] * q
        values = update.critics.critics({"obs": batch["obs"]}, batch["action"])
        expected = sum((value - target).abs() for value in values) / 2
    td_error, _ = update(batch, 0.0)
    torch.testing.assert_close(td_error, expected, rtol=1e-4, atol=1e-5)


def test_actors_gradient_is_that_of_the_first_critics_mean_value():
    state, update = start(replay_config("td3", {**STILL, "actor_every_updates": 1}), SPEC)
    state.model.layers.weight_2.data.mul_(60)
    batch = transitions(SPEC)
    first, _ = update.critics.critics({"obs": batch["obs"]}, state.model({"obs": batch["obs"]}))
    expected = torch.autograd.grad(-first.mean(), list(state.model.parameters()))
    _, metrics = update(batch, 0.0)
    found = [p.grad for p in state.model.parameters()]
    torch.testing.assert_close(found, list(expected), rtol=1e-3, atol=1e-6)
    assert metrics["actor_loss"].item() == pytest.approx(-first.mean().item(), rel=1e-4)


def test_actors_step_computes_no_gradient_of_the_critics():
    state, update = start(replay_config("td3", STILL), SPEC)
    batch = transitions(SPEC)
    update(batch, 0.0)
    before = learned_gradient(state, update)
    update._improve({"obs": batch["obs"]}, 1e-30)
    assert torch.equal(before, learned_gradient(state, update))


def changes(state, update, seeds):
    """How often actor, target actor and target critics changed, and the critics."""
    flats = (state.flat, update.target_actor.flat, update.critics.target.flat, update.critics.flat)
    number, before = [0, 0, 0, 0], [flat.hash() for flat in flats]
    for seed in seeds:
        update(transitions(SPEC, seed), 0.0)
        after = [flat.hash() for flat in flats]
        number = [n + (a != b) for n, a, b in zip(number, after, before, strict=True)]
        before = after
    return number


@pytest.mark.parametrize(("every", "wanted"), [(1, 10), (2, 5), (3, 3)])
def test_actor_and_targets_change_as_often_as_intervals_are_crossed(every, wanted):
    """Case N12, in updates; a resume between makes no difference."""
    settings = replay_config("td3", {"actor_every_updates": every, "learning_rate": 1e-3})
    state, update = start(settings, SPEC)
    assert changes(state, update, range(10)) == [wanted, wanted, wanted, 10]
    first, update = start(settings, SPEC)
    number = changes(first, update, range(4))
    second, resumed = start(settings, SPEC)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(update.state_dict())
    rest = changes(second, resumed, range(4, 10))
    assert [a + b for a, b in zip(number, rest, strict=True)] == [wanted, wanted, wanted, 10]
    assert second.updates == 10


def test_metrics_of_the_actor_are_those_of_its_last_update():
    _, update = start(replay_config("td3", {"actor_every_updates": 3}), SPEC)
    found = [update(transitions(SPEC, i), 0.0)[1].get("actor_loss") for i in range(5)]
    assert found[:2] == [None, None]
    assert found[2] is found[3] is found[4] is not None


def test_targets_go_the_part_tau_of_the_way():
    options = {"target_tau": 0.25, "actor_every_updates": 1, "learning_rate": 1e-2}
    state, update = start(replay_config("td3", options), SPEC)
    targets = update.critics.target.flat.flat, update.target_actor.flat.flat
    before = [x.clone() for x in targets]
    update(transitions(SPEC), 0.0)
    for target, old, followed in zip(targets, before, (update.critics.flat.flat, state.flat.flat), strict=True):
        torch.testing.assert_close(target, old.lerp(followed, 0.25))


def test_model_acts_at_random_in_warm_up_and_with_noise_afterwards():
    state, update = start(replay_config("td3", {"exploration_noise": 0.5}), SPEC)
    obs = {"obs": torch.zeros(1, 4)}
    uniform = torch.tensor([[0.25, 0.8413447]])  # the second one standard deviation above the mean
    update.set_exploration(0.0, True)
    assert state.model.policy(obs).sample(uniform)[0, 0].item() == pytest.approx(-0.5)
    update.set_exploration(0.0, False)
    policy = state.model.policy(obs)
    torch.testing.assert_close(policy.sample(uniform)[0, 1], policy.mode()[0, 1] + 0.5, rtol=0, atol=1e-4)


def test_best_action_of_a_bandit_is_found():
    settings = replay_config("td3", {"learning_rate": 3e-3}, model={"hidden_sizes": (32,)})
    state, update = start(settings, SPEC)
    generator = torch.Generator().manual_seed(0)
    for _ in range(500):
        action = torch.rand(64, 2, generator=generator) * 2 - 1
        obs = torch.zeros(64, 4)
        update({
            "obs": obs, "next_obs": obs, "action": action, "discount": torch.zeros(64), "is_weight": torch.ones(64),
            "return_": -5 * (action - torch.tensor([0.4, -0.6])).square().sum(1),
        }, 0.0)  # fmt: skip
    chosen = state.model.policy({"obs": torch.zeros(1, 4)}).mode()
    torch.testing.assert_close(chosen, torch.tensor([[0.4, -0.6]]), rtol=0, atol=0.1)
