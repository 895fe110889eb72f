"""Rewards as the learner sees them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrain.algos.reward_scaling import RewardScaler


def batch(num_steps: int, num_columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn(num_steps, num_columns, generator=generator) * 3 + 1
    ended = torch.rand(num_steps, num_columns, generator=generator) < 0.15
    valid = torch.ones_like(ended)
    for t in range(1, num_steps):
        valid[t] = ~(ended[t - 1] & valid[t - 1])
    return reward * valid, ended & valid, valid


def returns_one_by_one(reward, ended, valid, discount) -> list[float]:
    """Return every valid row's discounted return so far."""
    result = []
    for env in range(reward.shape[1]):
        total = 0.0
        for t in range(reward.shape[0]):
            if valid[t, env]:
                total = reward[t, env].item() + discount * total
                result.append(total)
                total = 0.0 if ended[t, env] else total
    return result


def test_scale_is_the_deviation_of_discounted_returns_carried_across_batches():
    reward, ended, valid = batch(40, 6, seed=0)
    scaler = RewardScaler(6, 0.9, None, True)
    lanes = np.arange(3)
    for rows in (slice(0, 13), slice(13, 14), slice(14, 40)):
        scaled = scaler(reward[rows], ended[rows], valid[rows], lanes)
    expected = np.std(returns_one_by_one(reward, ended, valid, 0.9))
    torch.testing.assert_close(scaled, reward[14:] / expected, rtol=1e-5, atol=1e-6)


def test_columns_belong_to_their_lane_in_whatever_order_they_come():
    reward, ended, valid = batch(20, 6, seed=1)
    straight, mixed = RewardScaler(6, 0.9, None, True), RewardScaler(6, 0.9, None, True)
    for rows, order in ((slice(0, 10), [2, 0, 1]), (slice(10, 20), [1, 2, 0])):
        columns = torch.tensor([lane * 2 + i for lane in order for i in range(2)])
        expected = straight(reward[rows], ended[rows], valid[rows], np.arange(3))
        scaled = mixed(*(x[rows][:, columns] for x in (reward, ended, valid)), np.array(order))
        torch.testing.assert_close(scaled, expected[:, columns])
    torch.testing.assert_close(straight.running_return, mixed.running_return)


def test_two_fragments_of_one_lane_in_a_batch_follow_each_other():
    reward, ended, valid = batch(20, 2, seed=2)
    straight, folded = RewardScaler(4, 0.9, None, True), RewardScaler(4, 0.9, None, True)
    straight(reward, ended, valid, np.array([1]))
    beside = [torch.cat([x[:10], x[10:]], dim=1) for x in (reward, ended, valid)]
    folded(*beside, np.array([1, 1]))
    torch.testing.assert_close(folded.running_return, straight.running_return)
    torch.testing.assert_close(folded.variance, straight.variance)
    assert folded.running_return[:2].tolist() == [0, 0]


def test_rewards_are_clipped_before_they_are_scaled():
    reward = torch.tensor([[5.0], [-7.0], [0.5]])
    no, yes = torch.zeros(3, 1, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool)
    clipped = RewardScaler(1, 0.9, 1.0, False)(reward, no, yes, np.arange(1))
    assert clipped.flatten().tolist() == [1.0, -1.0, 0.5]
    scaler = RewardScaler(1, 0.0, 1.0, True)
    scaler(reward, no, yes, np.arange(1))
    assert scaler.variance.item() == pytest.approx(np.var([1.0, -1.0, 0.5]))


def test_rewards_whose_returns_are_all_equal_stay_as_they_are():
    scaler = RewardScaler(2, 0.0, None, True)
    no, yes = torch.zeros(3, 2, dtype=torch.bool), torch.ones(3, 2, dtype=torch.bool)
    assert torch.equal(scaler(torch.ones(3, 2), no, yes, np.arange(1)), torch.ones(3, 2))


def test_state_dict_restored_continues_the_same_statistics():
    reward, ended, valid = batch(20, 2, seed=3)
    straight, first, second = (RewardScaler(2, 0.9, None, True) for _ in range(3))
    lanes = np.arange(1)
    straight(reward[:10], ended[:10], valid[:10], lanes)
    first(reward[:10], ended[:10], valid[:10], lanes)
    second.load_state_dict(first.state_dict())
    expected = straight(reward[10:], ended[10:], valid[10:], lanes)
    assert torch.equal(second(reward[10:], ended[10:], valid[10:], lanes), expected)


def test_state_dict_of_another_number_of_envs_keeps_the_statistics_and_begins_every_return_anew():
    reward, ended, valid = batch(20, 4, seed=4)
    before, after = RewardScaler(4, 0.9, None, True), RewardScaler(6, 0.9, None, True)
    before(reward, ended, valid, np.arange(2))
    after.running_return += 1
    after.load_state_dict(before.state_dict())
    assert after.running_return.tolist() == [0] * 6
    assert (after.mean, after.variance, after.count) == (before.mean, before.variance, before.count)


def test_restart_forgets_the_returns_of_these_envs_only():
    scaler = RewardScaler(4, 0.9, None, True)
    scaler.running_return += 2
    scaler.restart(slice(1, 3))
    assert scaler.running_return.tolist() == [2, 0, 0, 2]
