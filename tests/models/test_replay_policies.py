"""`build_model` for algorithms that learn from replay: networks, exploration buffers, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec
from rltrain.models import build_model
from rltrain.models.exploration import EpsilonGreedy, EpsilonLadder
from tests.replayed import LEAVES, REPLAY_ALGORITHMS, replay_config, spec_for, start, transitions
from tests.specs import BOX, FIVE_WAY, MULTI_BINARY, TWO_WAY, env_spec

UNBOUNDED = ActionSpec("box", (2,), "float32", low=(-1.0, -math.inf), high=(1.0, 1.0))


def settings_of(name, algo=None, **sections):
    return replay_config(name, algo, **sections).model_settings()


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
@pytest.mark.parametrize("leaves", LEAVES)
def test_policy_samples_what_the_env_stores(name, leaves):
    spec = spec_for(name, *LEAVES[leaves])
    model = build_model(spec, settings_of(name), True, seed=1)
    obs = {n: x for n, x in transitions(spec).items() if n.startswith("obs")}
    policy = model.policy(obs)
    for action in (policy.sample(torch.rand(12, model.noise_components)), policy.mode()):
        assert list(action.shape) == [12, *spec.action.stored_shape]
        assert str(action.dtype) == f"torch.{spec.action.stored_dtype}"
    assert policy.log_prob(policy.mode()).shape == policy.entropy().shape == (12,)


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_published_model_holds_what_acting_needs_and_no_more(name):
    state, _ = start(replay_config(name, {"epsilon_ladder": False} if name == "dqn" else {}))
    names = set(state.model.state_dict())
    exploration = "epsilon" if name == "dqn" else "acts_at_random"
    assert exploration in names
    assert {n.split(".")[0] for n in names} == {exploration, "network" if name == "dqn" else "layers"}


@pytest.mark.parametrize("name", REPLAY_ALGORITHMS)
def test_same_seed_gives_the_same_weights_and_another_seed_others(name):
    """Case S02."""
    one, two, other = (build_model(spec_for(name), settings_of(name), False, seed=s) for s in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_fresh_actor_is_near_the_middle(name):
    model = build_model(env_spec(BOX), settings_of(name), False)
    policy = model.policy({"obs": torch.randn(50, 4) * 3})
    assert policy.mode().abs().max() < 0.2
    if name == "sac":
        outputs = model({"obs": torch.randn(50, 4)})
        assert outputs[:, 2:].abs().max() < 0.1, "a deviation of about 1 before the squashing"


def test_ladder_is_made_where_it_is_asked_for():
    obs = {"obs": torch.zeros(1, 4)}
    plain = build_model(env_spec(), settings_of("dqn"), False).policy(obs)
    assert type(plain) is EpsilonGreedy
    actors = {"num_actors": 3, "groups_per_actor": 2, "envs_per_group": 4}
    ladder = build_model(env_spec(), settings_of("dqn", {"epsilon_ladder": True}, actors=actors), False).policy(obs)
    assert isinstance(ladder, EpsilonLadder)
    assert ladder.num_envs == 24


def test_exploration_noise_of_the_option_is_that_of_the_policy():
    model = build_model(env_spec(BOX), settings_of("td3", {"exploration_noise": 0.7}), False)
    policy = model.policy({"obs": torch.zeros(1, 4)})
    moved = policy.sample(torch.full((1, 2), 0.8413447)) - policy.mode()
    torch.testing.assert_close(moved, torch.full((1, 2), 0.7), rtol=0, atol=1e-3)


def test_log_prob_of_sac_is_that_of_the_envs_action():
    """Case N09: at the middle of [-2, 2] x [0, 10], half-widths 2 and 5."""
    model = build_model(env_spec(BOX), settings_of("sac"), False)
    for parameter in model.parameters():
        parameter.data.zero_()
    obs, middle = {"obs": torch.zeros(1, 4)}, torch.zeros(1, 2)
    expected = -math.log(2 * math.pi) - math.log(2.0) - math.log(5.0)
    assert model.policy(obs).log_prob(middle).item() == pytest.approx(expected, abs=1e-5)
    model.set_exploration(True)
    assert model.policy(obs).log_prob(middle).item() == pytest.approx(-math.log(4.0 * 10.0), abs=1e-5)


def test_log_prob_of_td3_is_in_policy_units_as_is_its_noise():
    model = build_model(env_spec(BOX), settings_of("td3"), False)
    model.set_exploration(True)
    policy = model.policy({"obs": torch.zeros(1, 4)})
    assert policy.log_prob(torch.zeros(1, 2)).item() == pytest.approx(-math.log(4.0), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "action", "says"),
    [
        ("dqn", BOX, ["one value for each action", "box of shape (2,)", '"ppo" or "appo", "sac" or "td3"']),
        ("dqn", MULTI_BINARY, ["multi_binary of shape (3,)", 'Use algo.name = "ppo" or "appo".']),
        ("sac", TWO_WAY, ['algo.name = "sac" needs Box actions', "are discrete", '"ppo", "appo" or "dqn"']),
        ("td3", MULTI_BINARY, ['algo.name = "td3" needs Box actions', "are multi_binary", '"ppo" or "appo"']),
        ("sac", UNBOUNDED, ["finite bounds", "low = [-1.0, -inf]", '"ppo" or "appo", or wrap']),
        ("td3", UNBOUNDED, ["finite bounds", "low = [-1.0, -inf]", '"ppo" or "appo", or wrap']),
    ],
)
def test_algorithm_that_does_not_fit_the_actions_is_refused_naming_those_that_do(name, action, says):
    with pytest.raises(ConfigError) as caught:
        build_model(env_spec(action), settings_of(name), False)
    for part in says:
        assert part in str(caught.value)


class Own(nn.Module):
    """A network of a user's: logits of a linear layer."""

    def __init__(self, spec, num_outputs=5):
        super().__init__()
        self.layer = nn.Linear(4, num_outputs)

    def forward(self, obs):
        return self.layer(obs["obs"])


class Column(Own):
    """Squeezes."""

    def forward(self, obs):
        return super().forward(obs)[:, 0]


class Rounded(Own):
    """Returns integers."""

    def forward(self, obs):
        return super().forward(obs).long()


class Tuple(Own):
    """Returns two things."""

    def forward(self, obs):
        return super().forward(obs), 1


class NoForward(nn.Module):
    """Computes nothing."""

    def __init__(self, spec):
        super().__init__()
        self.layer = nn.Linear(4, 5)


class Untrained(nn.Module):
    """Has nothing to train."""

    def __init__(self, spec):
        super().__init__()

    def forward(self, obs):
        return obs["obs"][:, :1].expand(-1, 5)


class Raises(Own):
    """Fails on any observation."""

    def forward(self, obs):
        raise ValueError("boom")


def make_function(spec):
    """Make something that is no module."""
    return lambda obs: obs


def own(name, **model):
    return build_model(env_spec(FIVE_WAY), settings_of("dqn", model={"kind": f"{__name__}:{name}", **model}), True)


def test_own_q_network_is_wrapped_with_statistics_and_exploration():
    model = own("Own")
    obs = {"obs": torch.randn(100, 4) * 7}
    model.update_statistics(obs)
    q = model.policy(obs).q
    torch.testing.assert_close(q, model.network.layer(model.normalised(obs)["obs"]))
    assert model.normalised(obs)["obs"].std().item() == pytest.approx(1.0, abs=0.1)
    model.set_exploration(0.25)
    assert model.policy(obs).epsilon.item() == 0.25


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Column", r"Column.forward\(obs\) returned shape \[2\]; accepted: a float Tensor \[2, 5\], for each row one"),
        ("Rounded", r"Rounded.forward\(obs\) returned torch.int64; accepted: a float Tensor"),
        ("Tuple", r"Tuple.forward\(obs\) returned tuple; accepted: a float Tensor"),
        ("NoForward", r'NoForward that lacks forward\(obs\). Accepted with algo.name = "dqn": an nn.Module whose'),
        ("Untrained", r"Untrained has no parameters to train"),
        ("make_function", r"made a function that lacks the base class torch.nn.Module"),
    ],
)
def test_own_q_network_that_does_not_fit_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        own(name)


def test_own_q_network_of_another_width_is_refused():
    with pytest.raises(ConfigError, match=r"returned shape \[2, 4\]; accepted: a float Tensor \[2, 5\]"):
        own("Own", kwargs={"num_outputs": 4})


def test_own_q_network_that_raises_says_what_it_was_given():
    with pytest.raises(ValueError, match="boom") as caught:
        own("Raises")
    assert "2 rows of zeros (obs: torch.float32 [2, 4])" in caught.value.__notes__[0]


def test_critics_of_images_train_an_encoder_of_their_own_unless_frozen():
    spec = spec_for("sac", *LEAVES["both"])
    model = build_model(spec, settings_of("sac"), False)
    critics = model.make_critics(torch.Generator().manual_seed(0))
    batch = transitions(spec)
    obs = {n: x for n, x in batch.items() if n.startswith("obs")}
    for are_frozen in (False, True):
        action = batch["action"].clone().requires_grad_()
        first, second = critics(obs, action, are_frozen)
        assert first.shape == second.shape == (12,)
        (first + second).sum().backward()
        assert action.grad.any()
        assert all((p.grad is not None) is not are_frozen for p in critics.parameters())
        critics.zero_grad()
    assert not any(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("leaves", LEAVES)
def test_own_q_network_of_the_example_takes_every_kind_of_observation(leaves):
    spec = spec_for("dqn", *LEAVES[leaves])
    model = build_model(spec, settings_of("dqn", model={"kind": "configs.own_q_model:make_model"}), False)
    obs = {n: x for n, x in transitions(spec).items() if n.startswith("obs")}
    assert model(obs).shape == (12, spec.action.nvec[0])
