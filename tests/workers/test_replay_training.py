"""Learning from the replay in one process: stops in the middle of a version, and states that do not fit."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltrain.algos.train_state import TrainState
from rltrain.config.load import load
from rltrain.config.schema import Config
from rltrain.errors import ConfigError
from rltrain.models import build_model
from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from rltrain.shm.ring import FragmentMeta
from rltrain.workers.prefetch import Batch, HostBatch
from rltrain.workers.replay_training import ReplayTraining
from rltrain.workers.sampler import Sampler
from tests.replay.streams import Stream, fragment_for, layout
from tests.telemetry.samples import row

OPTIONS = {
    "env.id": '"Test-v0"', "algo.name": '"dqn"', "actors.num_actors": 1, "actors.groups_per_actor": 2,
    "actors.envs_per_group": 2, "pipeline.fragment_length": 8, "replay.capacity": 400, "replay.learning_starts": 32,
    "replay.batch_size": 8, "replay.prioritized": "true", "replay.save": "true",
}  # fmt: skip


class Words:
    """The control words, set by a test."""

    stop = False
    finish = False


def training(**changes: Any) -> ReplayTraining:
    """A training with these options whose replay holds some fragments; it has no arena."""
    options = {**OPTIONS, **{path.replace("__", "."): value for path, value in changes.items()}}
    config: Config = load(None, [f"{path}={value}" for path, value in options.items()]).config
    spec = layout().spec
    state = TrainState(build_model(spec, config.model_settings(), False), config, num_envs=4)
    made = ReplayTraining(config, state, spec, 2)
    made.control, made.counters = Words(), row("learner")
    made.store = ReplayStore(made.layout)
    return made


def fill(made: ReplayTraining, num_fragments: int = 12) -> None:
    """Put random fragments into its replay."""
    made.sampler = Sampler(made.store, made.priorities, 8, torch.device("cpu"), made.counters, prefetch=True)
    stream = Stream(0, made.layout)
    for _ in range(num_fragments):
        made.sampler.insert(*stream.next())
    made.sampler.flush()
    made.ratio.collected(num_fragments * 16)


@pytest.mark.parametrize("word", ["stop", "finish"])
def test_stop_in_the_middle_of_a_version_leaves_nothing_drawn_and_what_is_owed_is_made_later(word):
    """A stop is no end of the process yet: in `overlap` one more version follows, and its checkpoint."""
    made = training(supervision__shutdown_grace_s=0.001)
    fill(made)
    due = made.ratio.num_due
    setattr(made.control, word, True)
    for _ in range(3):
        made._update_often(made.ratio.num_due, 100)
    assert made.sampler._drawn.empty()
    assert made.sampler._free.qsize() == 2
    assert due - 6 <= made.ratio.num_due < due
    setattr(made.control, word, False)
    made._update_often(made.ratio.num_due, 100)
    assert made.ratio.num_due == 0
    assert made.priorities.num_draws == due, "no draw was thrown away"
    made.close()


def batch_of(stream: Stream, metas: list[FragmentMeta]) -> Batch:
    """Fragments side by side, as the prefetch thread hands them over."""
    fragments = [fragment_for(stream.layout) for _ in metas]
    arrays = {name: np.concatenate([fragment[name] for fragment in fragments], 1) for name in fragments[0]}
    none = np.zeros(0)
    return Batch(
        number=0, tensors={name: torch.from_numpy(x) for name, x in arrays.items()},
        lanes=np.array([meta.lane for meta in metas]), metas=metas, num_env_steps=0, episode_returns=none,
        episode_lengths=none, has_ended=none, open_steps=none, host=HostBatch({}, {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("second", "num_rows"),
    [
        (FragmentMeta(0, 8, 0, (1 << 32) + 2), 16),
        (FragmentMeta(0, 9, 0, (1 << 32) + 2), 17),
        (FragmentMeta(0, 8, 0, (2 << 32) + 1), 17),
    ],
    ids=["the next one", "one is missing", "another life"],
)
def test_fragment_goes_on_from_the_one_before_only_if_it_is_the_next_of_the_same_life(second, num_rows):
    """What does not go on begins with a row that ends what was there."""
    made = training()
    fill(made, 0)
    stream = Stream(0, made.layout)
    made.learn(batch_of(stream, [FragmentMeta(0, 7, 0, (1 << 32) + 1)]), 0)
    assert made.store._lanes[0].head == 8
    made.learn(batch_of(stream, [second]), 0)
    assert made.store._lanes[0].head == num_rows
    made.close()


def saved(made: ReplayTraining) -> dict[str, Any]:
    """What a checkpoint would give back."""
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_replay_of_other_sizes_begins_empty_and_says_so():
    made = training()
    fill(made)
    other = training(replay__n_step=3)
    assert other.load_state_dict(saved(made), 192) == []
    said = other._refill()
    assert said == "the replay begins empty, as the saved one does not fit: replay.n_step was 1 and is 3"
    assert (other.store.size, other.ratio.filled) == (0, 0)
    same = training()
    same.load_state_dict(saved(made), 192)
    assert same.held_bytes > 1_000
    assert f"goes on with the {made.store.size} transitions" in same._refill()
    assert same.store.size == made.store.size
    made.close()


@pytest.mark.parametrize("change", [{"env__reward_clip": 0.1}, {"env__kwargs": "{hard = true}"}])
def test_replay_of_other_rewards_or_another_env_begins_empty(change):
    made = training()
    fill(made)
    other = training(**change)
    other.load_state_dict(saved(made), 192)
    assert "of other options of the section env" in other._refill()
    assert other.store.size == 0
    scaled = training(env__normalize_obs="true")
    scaled.load_state_dict(saved(made), 192)
    assert "goes on" in scaled._refill()
    made.close()


def test_resume_in_which_all_that_is_left_fills_the_replay_is_refused():
    made = training(replay__save="false", run__total_env_steps=1000)
    state = saved(made)
    with pytest.raises(ConfigError, match=r"leaves 32 env steps.*replay.learning_starts = 32 of them fill it"):
        made.load_state_dict(state, 968)
    assert "the next 32 env steps fill it" in made.load_state_dict(state, 967)[0]


def test_env_steps_that_cannot_be_drawn_yet_pay_for_no_update():
    """n-step windows need rows behind them: what comes before the first is no reason for a burst later."""
    made = training(replay__n_step=20, replay__learning_starts=1)
    fill(made, 0)
    stream = Stream(0, made.layout)
    for index in range(3):
        batch = batch_of(stream, [FragmentMeta(0, index, 0, 1), FragmentMeta(1, index, 0, 1)])
        made.learn(dataclasses.replace(batch, num_env_steps=32), 0)
        if not made.store.size:
            assert made.ratio.owed == 0
    assert made.store.size > 0
    assert made.ratio.owed < 1
    assert made.state.updates == 32 * 0.25
    made.close()


@pytest.mark.parametrize("capacity", [400, 4_000])
def test_checkpoint_of_a_replay_is_as_large_as_what_is_in_it(capacity):
    """Not as large as what could be in it, with several lanes."""
    made = training(replay__capacity=capacity)
    fill(made, 6)
    file = io.BytesIO()
    torch.save(made.state_dict()["replay"], file)
    assert len(file.getbuffer()) < 30_000
    made.close()


def test_masses_of_another_alpha_are_not_taken_for_its_own():
    """Switched to uniform at a resume, all that were in are equal."""
    before, after = Priorities(10, 1.0, 1e-6, 0), Priorities(10, 0.0, 1e-6, 0)
    before.enter(torch.arange(4).numpy())
    draw = before.sample(4, 0.4)
    before.update(draw.items, draw.generations, torch.full((4,), 9.0).numpy())
    after.load_state_dict(before.state_dict())
    assert after.tree.masses.tolist() == [1.0] * 4 + [0.0] * 6
    assert after.largest == 1.0


def test_file_of_a_replay_has_lost_its_name(tmp_path: Path):
    """Its room is free again however the process ends."""
    made = training()
    ReplayStore(made.layout, tmp_path / "replay.bin")
    assert list(tmp_path.iterdir()) == []
