"""Exploring distributions: epsilon-greedy and its ladder, noise around an action, any action at first."""

from __future__ import annotations

import math

import pytest
import torch

from rltrain.models.distributions import SquashedGaussian
from rltrain.models.exploration import EpsilonGreedy, EpsilonLadder, NoisyAction, UniformAtFirst

Q = torch.tensor([[0.0, 3.0, 1.0]])
SMALLEST, LARGEST = 2.0**-25, 1 - 2.0**-24


def grid(n=100):
    """Pairs of uniforms, n x n of them."""
    points = (torch.arange(n) + 0.5) / n
    return torch.cartesian_prod(points, points)


def test_epsilon_greedy_sample_over_a_grid_has_the_probabilities():
    uniform = grid(150)
    action = EpsilonGreedy(Q.expand(len(uniform), 3), torch.tensor(0.3)).sample(uniform)
    counts = torch.bincount(action, minlength=3) / len(uniform)
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.8, 0.1]), rtol=0, atol=1e-6)
    log_prob = EpsilonGreedy(Q.expand(3, 3), torch.tensor(0.3)).log_prob(torch.arange(3))
    torch.testing.assert_close(log_prob.exp(), torch.tensor([0.1, 0.8, 0.1]))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_entropy_equals_minus_the_mean_log_prob(epsilon):
    policy = EpsilonGreedy(Q.expand(3, 3), torch.tensor(epsilon))
    log_prob = policy.log_prob(torch.arange(3))
    expected = -torch.xlogy(log_prob.exp(), log_prob.exp()).sum()
    torch.testing.assert_close(policy.entropy(), expected.expand(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("uniform", [SMALLEST, LARGEST])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_epsilon_greedy_at_the_ends_keeps_to_the_actions_there_are(epsilon, uniform):
    q = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    action = EpsilonGreedy(q, torch.tensor(epsilon)).sample(torch.full((1000, 2), uniform))
    assert 0 <= action.min() <= action.max() <= 6
    assert torch.equal(action, q.argmax(1)) if epsilon == 0 else (action == action[0]).all()


def test_epsilon_greedy_mode_is_greedy_and_invariant_the_values():
    policy = EpsilonGreedy(Q.bfloat16(), torch.tensor(1.0))
    assert policy.mode().tolist() == [1]
    assert torch.equal(policy.invariant(), Q)


def test_ladder_gives_each_env_its_own_epsilon():
    """Envs 0, 1, 2 of 3: epsilon, epsilon^4.5, epsilon^8."""
    ladder = EpsilonLadder(Q.expand(4, 3), torch.tensor(0.4), 3)
    policy = ladder.for_envs(torch.tensor([2, 0, 1, 2]))
    torch.testing.assert_close(policy.epsilon, torch.tensor([0.4**8, 0.4, 0.4**4.5, 0.4**8]))
    action = policy.sample(torch.tensor([[0.1, 0.0]]).repeat(4, 1))
    assert action.tolist() == [1, 0, 1, 1]
    assert ladder.sample(torch.tensor([[0.1, 0.0]]).repeat(4, 1)).tolist() == [0] * 4, "as env 0 until it is told"


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_ladder_of_one_env_and_at_the_ends_is_epsilon_itself(epsilon):
    for num_envs in (1, 5):
        policy = EpsilonLadder(Q, torch.tensor(epsilon), num_envs).for_envs(torch.tensor([num_envs - 1]))
        assert policy.epsilon.item() == epsilon


def test_noisy_action_is_clipped_gaussian():
    policy = NoisyAction(torch.tensor([[0.0, 0.95]]), 0.1)
    assert policy.sample(torch.full((1, 2), 0.8413447))[0].tolist() == pytest.approx([0.1, 1.0], abs=1e-4)
    assert policy.mode()[0].tolist() == pytest.approx([0.0, 0.95])
    expected = 2 * (-math.log(0.1) - 0.5 * math.log(2 * math.pi)) - 0.5
    assert policy.log_prob(torch.tensor([[0.1, 0.95]])).item() == pytest.approx(expected, abs=1e-4)
    entropy = 2 * (math.log(0.1) + 0.5 * math.log(2 * math.pi * math.e))
    assert policy.entropy().item() == pytest.approx(entropy, abs=1e-5)


def test_noisy_action_without_noise_is_the_action():
    policy = NoisyAction(torch.tensor([[0.3]]), 0.0)
    assert policy.sample(torch.tensor([[0.99]])).item() == pytest.approx(0.3)
    assert policy.log_prob(torch.tensor([[0.3]])).item() == policy.entropy().item() == 0.0


def squashed(num_rows=1, half_width=2.0):
    zeros = torch.zeros(num_rows, 1)
    return SquashedGaussian(zeros, zeros, torch.tensor([half_width]).log())


def test_uniform_at_first_takes_any_action_as_long_as_the_flag_is_set():
    uniform = ((torch.arange(1000) + 0.5) / 1000)[:, None]
    policy = UniformAtFirst(squashed(1000), torch.tensor(True), math.log(4.0))
    torch.testing.assert_close(policy.sample(uniform), 2 * uniform - 1)
    assert policy.log_prob(torch.zeros(1000, 1)).unique().tolist() == pytest.approx([-math.log(4.0)])


def test_uniform_at_first_is_the_policy_once_the_flag_is_down():
    inner = squashed()
    policy = UniformAtFirst(inner, torch.tensor(False), math.log(4.0))
    uniform = torch.tensor([[0.7]])
    assert torch.equal(policy.sample(uniform), inner.sample(uniform))
    assert torch.equal(policy.log_prob(uniform), inner.log_prob(uniform))
    assert torch.equal(policy.mode(), inner.mode())
    assert policy.invariant().shape == (1, 2)


def test_squashed_gaussian_with_a_deviation_of_each_row_equals_rows_alone():
    mean, log_std = torch.tensor([[0.3, -1.0], [0.1, 0.5]]), torch.tensor([[0.0, -1.0], [0.5, -2.0]])
    half_width = torch.tensor([0.1, 0.2])
    both = SquashedGaussian(mean, log_std, half_width)
    action = torch.tensor([[0.2, -0.5], [0.9, 0.1]])
    for i in range(2):
        one = SquashedGaussian(mean[i : i + 1], log_std[i], half_width)
        torch.testing.assert_close(both.log_prob(action)[i : i + 1], one.log_prob(action[i : i + 1]))
        torch.testing.assert_close(both.entropy()[i : i + 1], one.entropy())
        uniform = torch.tensor([[0.2, 0.6]])
        torch.testing.assert_close(both.sample(uniform.expand(2, 2))[i : i + 1], one.sample(uniform))
