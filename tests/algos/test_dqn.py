"""Deep Q-learning: targets, losses and periods worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rltrain.algos.dqn import td_loss
from rltrain.fields import LeafSpec
from tests.replayed import replay_config, start
from tests.specs import FIVE_WAY, TWO_WAY, env_spec

STATE = LeafSpec("obs", "discrete", (), "int64", (4,), (0,))
SPEC = env_spec(TWO_WAY, STATE)


class Table(nn.Module):
    """One value for each state and action."""

    def __init__(self, spec):
        super().__init__()
        self.q = nn.Parameter(torch.zeros(spec.obs[0].nvec[0], spec.action.nvec[0]))

    def forward(self, obs):
        return self.q[obs["obs"]]


OWN = {"kind": f"{__name__}:Table"}
STILL = {"learning_rate": 1e-30, "max_grad_norm": None}


def tables(online, target, algo=None, spec=SPEC):
    """Return (state, update) with these values in the two networks."""
    state, update = start(replay_config("dqn", {**STILL, **(algo or {})}, model=OWN), spec)
    state.model.network.q.data.copy_(torch.tensor(online))
    update.target.network.q.data.copy_(torch.tensor(target))
    return state, update


def batch_of(rows, weights=None):
    """Rows are (state, action, return, discount, next state)."""
    obs, action, return_, discount, next_obs = zip(*rows, strict=True)
    return {
        "obs": torch.tensor(obs), "action": torch.tensor(action), "return_": torch.tensor(return_),
        "discount": torch.tensor(discount), "next_obs": torch.tensor(next_obs),
        "is_weight": torch.ones(len(rows)) if weights is None else torch.tensor(weights),
    }  # fmt: skip


ONLINE = [[1.0, 2.0], [0.0, 0.0], [3.0, 1.0], [0.0, 0.0]]
TARGET = [[0.0, 0.0], [0.0, 0.0], [5.0, 10.0], [0.0, 0.0]]
ROWS = [
    (0, 1, 1.0, 0.9, 2),  # one step
    (0, 0, 1.0 + 0.9 * 2.0 + 0.81 * 3.0, 0.729, 2),  # three steps
    (0, 1, 1.0 + 0.9 * 2.0, 0.81, 2),  # cut after two steps: bootstrapped from the final observation, discount^2
    (0, 1, 4.0, 0.0, 2),  # termination
]


@pytest.mark.parametrize(
    ("double", "expected"),
    [
        # chosen by the trained network: action 0, which the target network values at 5
        (True, [1 + 0.9 * 5 - 2, 5.23 + 0.729 * 5 - 1, 2.8 + 0.81 * 5 - 2, 4 - 2]),
        # chosen by the target network: action 1, at 10
        (False, [1 + 0.9 * 10 - 2, 5.23 + 0.729 * 10 - 1, 2.8 + 0.81 * 10 - 2, 4 - 2]),
    ],
)
def test_td_error_of_hand_made_transitions(double, expected):
    _, update = tables(ONLINE, TARGET, {"double": double})
    td_error, metrics = update(batch_of(ROWS), 0.0)
    assert td_error.tolist() == pytest.approx(expected, abs=1e-5)
    assert metrics["td_error_mean"].item() == pytest.approx(sum(expected) / 4, abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx((2 + 1 + 2 + 2) / 4)


@pytest.mark.parametrize(
    ("loss", "losses", "slopes"),
    [("huber", [0.125, 2.5, 0.5], [-0.5, 1, -1]), ("squared", [0.125, 4.5, 0.5], [-0.5, 3, -1])],
)
def test_td_loss_by_hand(loss, losses, slopes):
    found = td_loss(torch.tensor([-0.5, 3.0, -1.0]), loss)
    assert found[0].tolist() == pytest.approx(losses)
    assert found[1].tolist() == pytest.approx(slopes)


@pytest.mark.parametrize(("loss", "slope"), [("huber", 1.0), ("squared", 3.0)])
def test_gradient_is_of_the_action_taken_weighted_and_divided_by_the_batch(loss, slope):
    state, update = tables([[0.0, 0.0]] * 4, [[0.0, 0.0]] * 4, {"loss": loss})
    rows = [(0, 1, 3.0, 0.0, 0), (1, 0, -0.5, 0.0, 0)]
    _, metrics = update(batch_of(rows, weights=[0.5, 1.0]), 0.0)
    gradient = state.model.network.q.grad
    assert gradient[0].tolist() == pytest.approx([0.0, -slope * 0.5 / 2])
    assert gradient[1].tolist() == pytest.approx([0.5 / 2, 0.0])
    value = 2.5 if loss == "huber" else 4.5
    assert metrics["critic_loss"].item() == pytest.approx((value * 0.5 + 0.125) / 2)


def test_gradient_norm_is_limited_and_reported_before():
    state, update = tables([[0.0, 0.0]] * 4, [[0.0, 0.0]] * 4, {"loss": "squared", "max_grad_norm": 1.0})
    _, metrics = update(batch_of([(0, 1, 30.0, 0.0, 0)]), 0.0)
    assert metrics["grad_norm"].item() == pytest.approx(30.0)
    assert state.flat.grad.norm().item() == pytest.approx(1.0)


def changes_of_target(update, num_updates, batch):
    """How often the target network changed."""
    number, before = 0, update.target.network.q.clone()
    for _ in range(num_updates):
        update(batch, 0.0)
        number += not torch.equal(before, update.target.network.q)
        before = update.target.network.q.clone()
    return number


@pytest.mark.parametrize(("every", "num_updates", "wanted"), [(501, 1002, 2), (7, 60, 8), (1, 5, 5)])
def test_target_network_changes_as_often_as_intervals_are_crossed(every, num_updates, wanted):
    """Case N12, in updates; a resume between makes no difference."""
    options = {"target_every_updates": every, "learning_rate": 1e-3}
    batch = batch_of([(0, 1, 5.0, 0.0, 0)])
    _, update = tables(ONLINE, ONLINE, options)
    assert changes_of_target(update, num_updates, batch) == wanted
    first, update = tables(ONLINE, ONLINE, options)
    number = changes_of_target(update, num_updates // 3, batch)
    second, resumed = tables(ONLINE, ONLINE, options)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(update.state_dict())
    assert number + changes_of_target(resumed, num_updates - num_updates // 3, batch) == wanted


def test_target_network_goes_the_part_tau_of_the_way():
    _, update = tables(ONLINE, TARGET, {"target_every_updates": 1, "target_tau": 0.25})
    update(batch_of(ROWS), 0.0)
    expected = torch.tensor(TARGET).lerp(torch.tensor(ONLINE), 0.25)
    torch.testing.assert_close(update.target.network.q.data, expected)


class Counts(Table):
    """Counts its calls with a gradient in a buffer."""

    def __init__(self, spec):
        super().__init__(spec)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, obs):
        if torch.is_grad_enabled():
            self.calls += 1
        return super().forward(obs)


def test_target_network_takes_the_buffers_of_an_own_network():
    settings = replay_config("dqn", {"target_every_updates": 3}, model={"kind": f"{__name__}:Counts"})
    state, update = start(settings, SPEC)
    for _ in range(4):
        update(batch_of(ROWS), 0.0)
    assert (state.model.network.calls.item(), update.target.network.calls.item()) == (4, 3)


@pytest.mark.parametrize(
    ("progress", "is_warm_up", "epsilon"),
    [(0.0, True, 1.0), (0.0, False, 0.8), (0.1, False, 0.45), (0.2, False, 0.1), (0.9, False, 0.1), (0.9, True, 1.0)],
)
def test_exploration_goes_down_with_progress_and_is_full_in_warm_up(progress, is_warm_up, epsilon):
    options = {"epsilon_start": 0.8, "epsilon_end": 0.1, "epsilon_fraction": 0.2}
    state, update = start(replay_config("dqn", options))
    update.set_exploration(progress, is_warm_up)
    assert state.model.epsilon.item() == pytest.approx(epsilon)
    weights = state.flat.publish_view()
    other, _ = start(replay_config("dqn", options))
    other.flat.load(weights.copy())
    assert other.model.epsilon.item() == pytest.approx(epsilon), "it travels with the weights"


@pytest.mark.parametrize("options", [{}, {"double": False, "loss": "squared"}, {"dueling": True}])
def test_values_of_a_chain_are_learned(options):
    """Four states in a row, action 1 goes on and action 0 stays; the last one pays 1 and ends the episode."""
    rows = [(s, 0, 0.0, 0.9, s) for s in range(4)] + [(s, 1, 0.0, 0.9, s + 1) for s in range(3)] + [(3, 1, 1.0, 0.0, 0)]
    settings = replay_config(
        "dqn", {"learning_rate": 5e-3, "target_every_updates": 20, **options}, model={"hidden_sizes": (32,)}
    )
    state, update = start(settings, SPEC)
    for _ in range(800):
        update(batch_of(rows), 0.0)
    with torch.no_grad():
        q = state.model({"obs": torch.arange(4)})
    going = torch.tensor([0.9**3, 0.9**2, 0.9, 1.0])
    torch.testing.assert_close(q, torch.stack([0.9 * going, going], 1), rtol=0, atol=0.03)


def test_dueling_streams_have_the_mean_of_the_advantages_taken_off():
    state, _ = start(replay_config("dqn", {"dueling": True}, model={"hidden_sizes": (8, 6)}), env_spec(FIVE_WAY))
    network = state.model.network
    obs = {"obs": torch.randn(7, 4)}
    features = network.body(network.encoder(obs))
    advantage, value = network.advantage(features), network.value(features)
    torch.testing.assert_close(state.model(obs), value + advantage - advantage.mean(1, keepdim=True))
    torch.testing.assert_close(state.model(obs).mean(1), value.squeeze(1))
    assert (network.advantage.num_layers, network.value.num_layers, network.body.num_layers) == (2, 2, 1)
