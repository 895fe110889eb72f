"""Earlier fragments mixed with fresh ones, and appo learning from both."""

from __future__ import annotations

import pytest
import torch

from rltrain.replay.fragments import FragmentReplay
from tests.learning import LANES, NUM_COLUMNS, config, on_policy_batch, start, weights_of

NUM_STEPS = 3


def fragments(first: int, number: int) -> dict[str, torch.Tensor]:
    """Columns full of their own numbers, from `first` on."""
    numbers = torch.arange(first, first + number, dtype=torch.float32)
    return {
        "obs": numbers[None, :, None].repeat(NUM_STEPS + 1, 1, 2),
        "reward": numbers[None].repeat(NUM_STEPS + 1, 1),
    }


def columns_of(mixed: dict[str, torch.Tensor]) -> list[int]:
    """The number of each column, which must be the same in all fields and rows."""
    numbers = mixed["reward"][0]
    assert torch.equal(mixed["reward"], numbers[None].expand(NUM_STEPS + 1, -1))
    assert torch.equal(mixed["obs"], numbers[None, :, None].expand(NUM_STEPS + 1, -1, 2))
    return numbers.long().tolist()


@pytest.mark.parametrize(("share", "num_drawn"), [(0.5, 6), (0.25, 2), (0.75, 18)])
def test_mixed_batch_is_the_fresh_columns_and_whole_earlier_ones_in_the_wanted_share(share, num_drawn):
    replay = FragmentReplay(100, share, 0.6, seed=0)
    assert columns_of(replay.mix(fragments(0, 6))) == list(range(6)), "there is nothing earlier yet"
    for first in (6, 12, 18):
        mixed = columns_of(replay.mix(fragments(first, 6)))
        assert mixed[:6] == list(range(first, first + 6))
        assert len(mixed[6:]) == num_drawn
        assert set(mixed[6:]) <= set(range(first))


def test_share_that_makes_less_than_a_column_adds_up():
    replay = FragmentReplay(100, 0.05, 0.6, seed=0)
    mixed = [len(columns_of(replay.mix(fragments(6 * i, 6)))) - 6 for i in range(20)]
    assert set(mixed) == {0, 1}
    assert sum(mixed) == pytest.approx(20 * 6 * 0.05 / 0.95, abs=1)


def test_oldest_columns_make_room():
    replay = FragmentReplay(8, 0.5, 0.0, seed=0)
    for first in range(0, 40, 4):
        mixed = columns_of(replay.mix(fragments(first, 4)))
        assert set(mixed[4:]) <= set(range(max(0, first - 8), first))


def test_batch_larger_than_what_is_kept_leaves_its_last_columns():
    replay = FragmentReplay(4, 0.5, 0.0, seed=0)
    replay.mix(fragments(0, 10))
    assert set(columns_of(replay.mix(fragments(10, 10)))[10:]) <= {6, 7, 8, 9}


def test_columns_are_drawn_in_proportion_to_their_errors():
    replay = FragmentReplay(4, 0.5, 1.0, seed=0)
    replay.mix(fragments(0, 4))
    replay.prioritize(torch.tensor([1.0, 0.0, 3.0, 0.0]))
    draw = replay.priorities.sample(4_000, 0.0)
    counts = torch.bincount(torch.from_numpy(draw.items), minlength=4) / 4_000
    torch.testing.assert_close(counts.double(), torch.tensor([0.25, 0.0, 0.75, 0.0]).double(), atol=0.01, rtol=0)


def test_errors_go_to_the_columns_they_are_of_and_not_to_those_that_were_overwritten():
    replay = FragmentReplay(8, 0.5, 1.0, seed=0)
    replay.mix(fragments(0, 8))
    replay.prioritize(torch.full((8,), 2.0))
    mixed = columns_of(replay.mix(fragments(8, 4)))  # over the places of 0 to 3
    replay.prioritize(torch.tensor([float(number) for number in mixed]))
    expected = [8.0, 9.0, 10.0, 11.0] + [float(n) if n in mixed else 2.0 for n in range(4, 8)]
    assert replay.priorities.tree.masses.tolist() == pytest.approx(expected, rel=1e-5)


def test_error_of_a_drawn_column_is_not_taken_for_that_of_the_fresh_one_in_its_place():
    """A fresh error that is no number leaves the priority of a new column, and not that of the old one."""
    replay = FragmentReplay(4, 0.5, 1.0, seed=0)
    replay.mix(fragments(0, 4))
    replay.prioritize(torch.full((4,), 2.0))
    replay.mix(fragments(4, 4))
    replay.prioritize(torch.tensor([float("nan")] * 4 + [0.5] * 4))
    assert replay.priorities.tree.masses.tolist() == pytest.approx([2.0] * 4, rel=1e-5), "the largest so far"


class Spy:
    """Mixes nothing in, and keeps what it is told."""

    def __init__(self) -> None:
        self.errors: list[torch.Tensor] = []

    def mix(self, fresh: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the same."""
        return fresh

    def prioritize(self, error: torch.Tensor) -> None:
        """Keep it."""
        self.errors.append(error.clone())


@pytest.mark.parametrize("num_minibatches", [1, 3])
def test_appo_tells_each_column_its_own_error_whatever_the_order_of_minibatches(num_minibatches):
    settings = config("appo", {"num_minibatches": num_minibatches, "learning_rate": 1e-12})
    state, update = start(settings)
    update.replay = Spy()
    batch = on_policy_batch(state.model)
    batch["reward"][:, 2] += 50.0
    batch["reward"][~batch["valid"]] = 0
    update(state, batch, 0.0, LANES)
    (error,) = update.replay.errors
    assert error.shape == (NUM_COLUMNS,)
    assert int(error.argmax()) == 2
    assert error[2] > 5 * error[torch.arange(NUM_COLUMNS) != 2].max()


def test_appo_learns_from_what_is_mixed_in_and_without_replay_as_before():
    weights = []
    for replay in (None, FragmentReplay(16, 0.5, 0.6, seed=0)):
        state, update = start(config("appo"))
        update.replay = replay
        for seed in range(3):
            metrics = update(state, on_policy_batch(state.model, seed=seed), 0.0, LANES)
            assert all(torch.isfinite(value) for value in metrics.values())
        weights.append(weights_of(state))
    assert not torch.equal(*weights)
