"""Advantages and value targets: golden values and identities. Rows after an end hold the final observation's value."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.returns import gae, vtrace


def column(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def flags(num_rows: int, *at: int) -> torch.Tensor:
    result = torch.zeros(num_rows, 1, dtype=torch.bool)
    result[list(at)] = True
    return result


def learned(x: torch.Tensor, valid: torch.Tensor) -> list[float]:
    return x[valid].tolist()


def random_batch(num_steps: int, num_columns: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return an NEXT_STEP batch with ends of both kinds."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(num_steps, num_columns, generator=generator)
    terminated, truncated, valid = u < 0.1, (u > 0.05) & (u < 0.2), torch.ones_like(u, dtype=torch.bool)
    for t in range(1, num_steps):
        valid[t] = ~((terminated[t - 1] | truncated[t - 1]) & valid[t - 1])
    terminated, truncated = terminated & valid, truncated & valid
    return {
        "reward": torch.randn(num_steps, num_columns, generator=generator, dtype=torch.float64) * valid,
        "value": torch.randn(num_steps + 1, num_columns, generator=generator, dtype=torch.float64),
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ((), (1,), [4.85, 7.0, 2.13, 1.4]),
        ((1,), (), [0.8, -2.0, 2.13, 1.4]),
        ((1,), (1,), [0.8, -2.0, 2.13, 1.4]),
    ],
    ids=["truncated", "terminated", "both"],
)
def test_gae_at_an_end_bootstraps_from_the_final_observation_only_if_truncated(terminated, truncated, expected):
    """Case E01."""
    valid = ~flags(5, 2)
    advantage = gae(
        column(1, 1, 0, 1, 1), column(2, 3, 10, 4, 5, 6), flags(5, *terminated), flags(5, *truncated), 0.9, 0.5, valid
    )
    assert learned(advantage, valid) == pytest.approx(expected, abs=1e-9)
    assert advantage[2].item() == 0


def test_gae_at_a_termination_inside_credits_no_next_episode():
    """Case E02."""
    valid = ~flags(4, 2)
    advantage = gae(
        column(0, -2, 0, 0), column(1, 1.5, 777, 50, 50), flags(4, 1), flags(4), 0.9, 0.95, valid
    )
    assert learned(advantage, valid) == pytest.approx([-2.6425, -3.5, -5.0], abs=1e-9)


def test_gae_at_a_termination_in_the_last_row_ignores_the_value_after_it():
    """Case E02."""
    advantage = gae(column(0, 0, -2), column(1, 1.5, 50, 777), flags(3, 2), flags(3), 0.9, 0.95)
    last = -2 - 50
    middle = 0.9 * 50 - 1.5 + 0.855 * last
    assert advantage[:, 0].tolist() == pytest.approx([0.9 * 1.5 - 1 + 0.855 * middle, middle, last], abs=1e-9)


def test_gae_at_a_termination_in_the_first_row_starts_afresh_after_it():
    """Case E02."""
    valid = ~flags(4, 1)
    advantage = gae(column(-2, 0, 0, 0), column(1, 777, 1.5, 50, 50), flags(4, 0), flags(4), 0.9, 0.95, valid)
    assert learned(advantage, valid) == pytest.approx([-3.0, 43.5 + 0.855 * -5.0, -5.0], abs=1e-9)


def test_gae_at_a_truncation_cuts_the_recursion_whatever_follows():
    """Case E01."""
    advantage = gae(column(1, 1), column(2, 3, 4), flags(2), flags(2, 0), 0.9, 0.5)
    assert advantage[:, 0].tolist() == pytest.approx([1 + 0.9 * 3 - 2, 1 + 0.9 * 4 - 3], abs=1e-12)


def test_gae_in_float32_matches_float64():
    batch = random_batch(64, 5)
    double = gae(**batch, discount=0.99, gae_lambda=0.95)
    halved = {name: x.float() if x.is_floating_point() else x for name, x in batch.items()}
    single = gae(**halved, discount=0.99, gae_lambda=0.95)
    torch.testing.assert_close(single, double.float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 8, 13, 32])
def test_gae_equals_the_recursion_row_by_row(num_steps):
    batch = random_batch(num_steps, 7, seed=num_steps)
    advantage = gae(**batch, discount=0.9, gae_lambda=0.8)
    following = torch.zeros(7, dtype=torch.float64)
    for t in reversed(range(num_steps)):
        ended = batch["terminated"][t] | batch["truncated"][t]
        bootstrap = torch.where(batch["terminated"][t], 0, batch["value"][t + 1])
        delta = batch["reward"][t] + 0.9 * bootstrap - batch["value"][t]
        following = torch.where(batch["valid"][t], delta + torch.where(ended, 0, 0.9 * 0.8 * following), 0)
        torch.testing.assert_close(advantage[t], following, rtol=0, atol=1e-12)


def discounted_return(batch: dict[str, torch.Tensor], discount: float) -> torch.Tensor:
    """Sum rewards to the end of the episode, or of the fragment, and bootstrap there."""
    result = torch.empty_like(batch["reward"])
    following = batch["value"][-1]
    for t in reversed(range(len(result))):
        following = torch.where(batch["truncated"][t], batch["value"][t + 1], following)
        following = batch["reward"][t] + discount * torch.where(batch["terminated"][t], 0, following)
        result[t] = following
    return result


def test_gae_with_lambda_one_is_discounted_return_minus_value():
    batch = random_batch(40, 9)
    advantage = gae(**batch, discount=0.95, gae_lambda=1.0)
    expected = discounted_return(batch, 0.95) - batch["value"][:-1]
    torch.testing.assert_close(advantage[batch["valid"]], expected[batch["valid"]], rtol=0, atol=1e-12)


def test_vtrace_on_policy_is_the_n_step_return():
    batch = random_batch(40, 9)
    value_target, _ = vtrace(torch.zeros(40, 9, dtype=torch.float64), **batch, discount=0.95)
    expected = discounted_return(batch, 0.95)
    torch.testing.assert_close(value_target[batch["valid"]], expected[batch["valid"]], rtol=0, atol=1e-12)


def test_vtrace_on_policy_with_lambda_is_gae():
    batch = random_batch(40, 9)
    value_target, _ = vtrace(torch.zeros(40, 9, dtype=torch.float64), **batch, discount=0.95, trace_lambda=0.7)
    expected = gae(**batch, discount=0.95, gae_lambda=0.7) + batch["value"][:-1]
    torch.testing.assert_close(value_target, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "targets", "advantages"),
    [
        ((1, 1, 1, 1, 1), [6.85, 6.5, 7.38, 8.2], [3.85, 2.5, -12.62, -1.8]),
        ((2, 0.5, 3, 1, 1), [5.725, 5.25, 7.38, 8.2], [2.725, 1.25, -12.62, -1.8]),
    ],
    ids=["on_policy", "off_policy"],
)
def test_vtrace_at_a_truncation_and_at_the_fragment_edge_uses_the_true_values(ratio, targets, advantages):
    """Case N01. Its advantages are those of the policy gradient: times rho."""
    valid = ~flags(5, 2)
    value_target, advantage = vtrace(
        column(*ratio).log(), column(1, 2, 0, 0, 1), column(3, 4, 5, 20, 10, 8), flags(5), flags(5, 1), 0.9, valid=valid
    )
    rho = column(*ratio).clamp(max=1)
    assert learned(value_target, valid) == pytest.approx(targets, abs=1e-9)
    assert learned(rho * advantage, valid) == pytest.approx(advantages, abs=1e-9)
    assert advantage[2].item() == 0


def test_vtrace_of_a_batch_split_at_an_episode_end_is_unchanged():
    """Case N01."""
    batch = random_batch(30, 1, seed=4)
    log_ratio = torch.randn(30, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ended = (batch["terminated"] | batch["truncated"])[:, 0]
    cut = int(ended.nonzero()[0]) + 1
    whole = vtrace(log_ratio, **batch, discount=0.9)

    def part(first, last):
        rows = {k: v[first : last + (k == "value")] for k, v in batch.items()}
        return vtrace(log_ratio[first:last], **rows, discount=0.9)

    for all_rows, before, after in zip(whole, part(0, cut), part(cut, 30), strict=True):
        torch.testing.assert_close(all_rows, torch.cat([before, after]), rtol=0, atol=1e-12)


def test_vtrace_clips_bound_the_ratios_separately():
    log_ratio = column(5, 5, 5).log()
    targets, _ = vtrace(
        log_ratio, column(1, 1, 1), column(0, 0, 0, 0), flags(3), flags(3), 1.0, rho_clip=2.0, c_clip=0.5
    )
    assert targets[:, 0].tolist() == pytest.approx([2 + 0.5 * (2 + 0.5 * 2), 2 + 0.5 * 2, 2])
