"""The replay-ratio limiter as arithmetic."""

from __future__ import annotations

import pytest

from rltrain.workers.replay_ratio import ReplayRatio


def make_due(ratio: ReplayRatio) -> int:
    """Make all updates that are due; return how many."""
    number = ratio.num_due
    for _ in range(number):
        ratio.updated()
    return number


def test_updates_follow_the_ratio_and_none_come_for_what_filled_the_replay():
    ratio = ReplayRatio(0.25, learning_starts=1_000)
    made = []
    for _ in range(100):
        ratio.collected(30)
        made.append(make_due(ratio))
    assert sum(made) == (3_000 - 1_000) // 4
    assert sum(made[:33]) == 0, "990 env steps only fill it"
    assert made[33] == 5, "of the 30 that complete the filling, 20 are beyond it"
    assert set(made[34:]) == {7, 8}


@pytest.mark.parametrize("rows", [1, 7, 512])
def test_ratio_of_a_third_loses_no_update_to_rounding(rows):
    ratio = ReplayRatio(1 / 3, learning_starts=1)
    ratio.collected(1)
    made = 0
    for _ in range(900):
        ratio.collected(rows)
        made += make_due(ratio)
    assert made == 300 * rows


def test_resume_without_replay_fills_it_before_updates_and_brings_no_burst():
    """Case C07 (b): one update for four env steps; stopped at 10,000 env steps."""
    before = ReplayRatio(0.25, learning_starts=1_000)
    before.collected(10_000)
    resumed = ReplayRatio(0.25, learning_starts=1_000)
    resumed.load_state_dict(before.state_dict(), is_replay_empty=True)
    assert resumed.is_filling
    made = []
    for _ in range(40):
        resumed.collected(50)
        made.append(make_due(resumed))
    assert made[:20] == [0] * 20
    assert max(made) <= 13
    assert sum(made) == 250


def test_resume_with_replay_goes_on_where_it_was():
    """Case C07 (a)."""
    straight, stopped = ReplayRatio(0.3, learning_starts=10), ReplayRatio(0.3, learning_starts=10)
    for ratio in (straight, stopped):
        ratio.collected(25)
        make_due(ratio)
    resumed = ReplayRatio(0.3, learning_starts=10)
    resumed.load_state_dict(stopped.state_dict(), is_replay_empty=False)
    counts = []
    for ratio in (straight, resumed):
        ratio.collected(9)
        counts.append((make_due(ratio), ratio.owed, ratio.filled))
    assert counts[0] == counts[1]


def test_credit_ends_where_the_band_ends_and_is_paid_back():
    ratio = ReplayRatio(0.5, learning_starts=10, ahead_env_steps=20)
    ratio.collected(9)
    assert ratio.num_on_credit == 0, "nothing is on credit while the replay is filled"
    ratio.collected(1)
    assert (ratio.num_due, ratio.num_on_credit) == (0, 10)
    for _ in range(10):
        ratio.updated()
    assert ratio.num_on_credit == 0
    ratio.collected(22)
    assert ratio.num_due == 1
