"""Resuming with other options: what is refused, what goes on, what starts afresh."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rltrain.algos.train_state import TrainState
from rltrain.config.load import load
from rltrain.errors import CheckpointError
from rltrain.fields import EnvSpec, FragmentSchema
from rltrain.models import build_model
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.workers.channel import Channel
from rltrain.workers.checkpoint_content import validate
from rltrain.workers.checkpoints import CheckpointStore
from rltrain.workers.saver import Saver
from tests.runs import SMALL, Running, resume, train
from tests.specs import env_spec

OPTIONS = {"env.id": "Test-v0", **SMALL, "env.normalize_reward": True}
SPEC = EnvSpec.from_dict({**env_spec().to_dict(), "snapshot_bytes": 200})
NUM_LANES, SNAPSHOT = 4, bytes(100)


@pytest.fixture
def make():
    """Return a function: a saver of a fresh model with these options, and the supervisor's end of its channel."""
    channels = []

    def make(**changes: Any) -> tuple[Saver, Channel]:
        options = {**OPTIONS, **{path.replace("__", "."): value for path, value in changes.items()}}
        config = load(None, [f"{path}={json.dumps(value)}" for path, value in options.items()]).config
        ours, theirs = Channel.pair()
        channels.extend([ours, Channel(theirs)])
        num_lanes = config.actors.num_actors * config.actors.groups_per_actor
        model = build_model(SPEC, config.model.model_dump(), config.env.normalize_obs)
        state = TrainState(model, config, num_lanes * config.actors.envs_per_group)
        return Saver(channels[-1], config, SPEC, state, num_lanes), ours

    yield make
    for channel in channels:
        channel.close()


PROGRESS = {
    "version": 3, "env_steps": 640, "next_log": 700, "episodes": {"returns": [], "lengths": [], "num_episodes": 0},
    "training": {"algorithm": {}, "replay": {}, "ratio": {}},
}  # fmt: skip


def store_by(saver: Saver, save: Callable[..., Path]) -> None:
    """Let a saver that has no arena save by this function."""
    saver.counters = SimpleNamespace(enter=lambda state: None, beat=lambda: None)
    saver.board = SimpleNamespace(read=lambda version, into: version)
    saver.store = SimpleNamespace(save=save)


@pytest.fixture
def checkpoint(make) -> dict[str, Any]:
    """What a run saved after it has learned something, all its lanes' env states included."""
    saver, _ = make()
    saver.state.reward_scaler.running_return += 3
    saver.state.reward_scaler.variance += 5
    saver.state.flat.flat[0] = 7
    saved = {}
    store_by(saver, lambda state, steps, score, beat: saved.update(state) or Path("checkpoint"))
    saver.save(PROGRESS, dict.fromkeys(range(NUM_LANES), SNAPSHOT), 1.0, is_last=False)
    return validate(saved)


def warnings_of(channel: Channel) -> list[str]:
    found = []
    while (message := channel.recv(0)) is not None:
        found.append(message[0]["warning"])
    return found


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("model__hidden_sizes", [32], "model.hidden_sizes = [32], but the checkpoint was made with [16]"),
        ("model__activation", "relu", 'model.activation = "relu", but the checkpoint was made with "tanh"'),
        ("env__normalize_obs", True, "env.normalize_obs = true, but the checkpoint was made with false"),
    ],
)
def test_restore_with_another_model_names_option_and_both_values(checkpoint, make, option, value, words):
    saver, _ = make(**{option: value})
    before = saver.state.flat.hash()
    with pytest.raises(CheckpointError) as caught:
        saver.restore(checkpoint)
    assert words in str(caught.value)
    assert "config.toml" in str(caught.value)
    assert saver.state.flat.hash() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"actors__envs_per_group": 3}, "actors.envs_per_group"),
        ({"actors__num_actors": 1}, "actors.num_actors"),
        ({"actors__groups_per_actor": 1}, "actors.groups_per_actor"),
        ({"actors__num_actors": 1, "actors__envs_per_group": 4}, "actors.envs_per_group, actors.num_actors"),
        ({"env__max_episode_steps": 9}, "env.max_episode_steps"),
        ({"env__kwargs__hard": True}, "env.kwargs"),
    ],
)
def test_restore_with_other_envs_goes_on_with_envs_and_their_returns_afresh(checkpoint, make, changes, named):
    saver, channel = make(**changes)
    saver.restore(checkpoint)
    (warning,) = warnings_of(channel)
    assert "environments are reset" in warning
    assert f"({named})" in warning
    assert saver._snapshots == {}
    scaler = saver.state.reward_scaler
    assert scaler.variance.item() == 5
    assert scaler.running_return.eq(0).all()
    assert saver.state.flat.flat[0].item() == 7
    assert len(saver._previous_weights) == saver.state.flat.weight_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"pipeline__fragment_length": 8}, {"actors__num_actors": 1, "actors__groups_per_actor": 4},
        {"env__reward_clip": 1.0}, {"run__total_env_steps": 9999},
    ],
)  # fmt: skip
def test_restore_with_the_same_envs_keeps_their_states_and_returns(checkpoint, make, changes):
    saver, channel = make(**changes)
    saver.restore(checkpoint)
    assert warnings_of(channel) == []
    assert saver._snapshots == dict.fromkeys(range(NUM_LANES), SNAPSHOT)
    assert saver.state.reward_scaler.running_return.eq(3).all()


def test_restore_without_the_state_of_one_lane_begins_its_returns_anew(checkpoint, make):
    del checkpoint["snapshots"]["2"]
    saver, _ = make()
    saver.restore(checkpoint)
    assert saver.state.reward_scaler.running_return.tolist() == [3, 3, 3, 3, 0, 0, 3, 3]


@pytest.mark.parametrize("part", ["weights", "generator"])
def test_restore_of_a_train_state_that_is_not_of_this_model_changes_nothing(checkpoint, make, part):
    train = checkpoint["train_state"]
    train[part] = torch.cat([train[part], train[part]]) if part == "weights" else torch.full_like(train[part], 255)
    saver, _ = make()
    before = saver.state.flat.hash()
    with pytest.raises(CheckpointError, match="damaged"):
        saver.restore(checkpoint)
    assert saver.state.flat.hash() == before


def test_restore_of_another_devices_generator_starts_from_the_seed(checkpoint, make):
    checkpoint["train_state"]["generator"] = torch.zeros(16, dtype=torch.uint8)
    saver, _ = make()
    before = saver.state.generator.get_state()
    saver.restore(checkpoint)
    assert torch.equal(saver.state.generator.get_state(), before)


def arena_of(saver: Saver) -> Arena:
    """Return an arena that a saver can attach to."""
    layout = ArenaLayout.plan(
        FragmentSchema.for_env(SPEC, 16, 2), num_slots=4, num_actors=2, groups_per_actor=2,
        weight_bytes=saver.state.flat.weight_bytes, snapshot_bytes=200, roles=("learner",),
    )  # fmt: skip
    return Arena.create(layout)


@pytest.mark.parametrize(
    ("checkpoint", "num_saves"),
    [
        ({"every_s": 60.0}, math.inf), ({"every_env_steps": 256}, 5),
        ({"every_env_steps": 256, "every_s": 60.0}, math.inf),
    ],
)
def test_attach_asks_for_the_room_of_all_saves_to_come(make, tmp_path, monkeypatch, checkpoint, num_saves):
    """Of 1024 env steps, the one at the end included; by time they may be any number."""
    asked = []
    monkeypatch.setattr(CheckpointStore, "missing_room", lambda self, size, num: asked.append(num))
    saver, _ = make(**{f"checkpoint__{name}": value for name, value in checkpoint.items()})
    saver.attach(arena_of(saver), tmp_path, None, 3)
    assert asked == [num_saves]


def test_attach_without_room_for_an_env_state_says_so_and_begins_its_returns_anew(checkpoint, make, tmp_path):
    checkpoint["snapshots"]["1"] = torch.zeros(300, dtype=torch.uint8)
    saver, channel = make()
    saver.restore(checkpoint)
    saver.attach(arena_of(saver), tmp_path, None, 3)
    (warning,) = warnings_of(channel)
    assert "lane 1 in the checkpoint have 300 bytes, more than the 200 bytes of room" in warning
    assert saver.snapshots.read(0) == (3, SNAPSHOT)
    assert saver.snapshots.read(1) is None
    assert saver.state.reward_scaler.running_return.tolist() == [3, 3, 0, 0, 3, 3, 3, 3]


def test_save_that_finds_no_room_a_hundred_times_warns_a_few_times_and_anew_after_a_good_one(make):
    def refuse(*_: Any) -> Path:
        raise CheckpointError("no room.")

    saver, channel = make()
    for _ in range(2):
        store_by(saver, refuse)
        for _ in range(100):
            saver.save(PROGRESS, {}, 1.0, is_last=False)
        warnings = warnings_of(channel)
        assert warnings[0] == "no room."
        assert warnings[-1] == "no room. 64 checkpoints in a row were not written."
        assert len(warnings) == 7
        store_by(saver, lambda *_: Path("checkpoint"))
        saver.save(PROGRESS, {}, 1.0, is_last=False)
        assert channel.recv(0)[0]["checkpoint"] == "checkpoint"


def test_save_with_updates_still_owed_says_that_a_resumed_run_will_differ(make):
    saver, channel = make()
    store_by(saver, lambda *_: Path("checkpoint"))
    for owed in (0.75, 60.5):
        progress = {**PROGRESS, "training": {**PROGRESS["training"], "ratio": {"filled": 9.0, "owed": owed}}}
        saver.save(progress, {}, 1.0, is_last=True)
    told = [message[0] for message in iter(lambda: channel.recv(0), None)]
    (warning,) = (message["warning"] for message in told if "warning" in message)
    assert warning.startswith("60 updates that this version still owes")
    assert "supervision.shutdown_grace_s" in warning


@pytest.mark.timeout(300)
def test_run_resumed_with_other_options_goes_on_or_is_refused_in_words(tmp_path):
    with train(tmp_path, {"run.total_env_steps": 256}) as first:
        first.end().finished()
    refused = {"model.hidden_sizes=[32]": "[16]", "env.normalize_obs=true": "false"}
    for option, old in refused.items():
        with resume(tmp_path, "--set", option, "--set", "run.total_env_steps=512") as run:
            ended = run.end()
        assert ended.returncode == 5, ended.stderr
        assert f"but the checkpoint was made with {old}" in ended.stderr
        assert "Traceback" not in ended.stderr
    sizes = ("actors.num_actors=1", "actors.envs_per_group=3", "pipeline.fragment_length=8", "run.total_env_steps=512")
    with resume(tmp_path, *(word for size in sizes for word in ("--set", size))) as run:
        ended = run.end().finished()
    assert "environments are reset" in ended.stdout + ended.stderr
    assert ended.summary["env_steps"] >= 512


@pytest.mark.timeout(300)
def test_run_and_evaluation_take_the_newest_good_checkpoint_and_refuse_a_wrong_one(tmp_path):
    with train(tmp_path, {"run.total_env_steps": 256}) as first:
        (good,) = first.end().finished().checkpoints
    folder = good.parent
    state, _, _ = CheckpointStore.load(good)
    wrong = CheckpointStore(folder, 3, False).save({**state, "version": -5}, 999, None)
    evaluate = ("--episodes", "1", "--json")
    with Running(tmp_path / "newest", "eval", str(folder.parent), *evaluate) as newest:
        ended = newest.end().finished()
    assert json.loads(ended.stdout)["checkpoint"] == str(good)
    assert "version is -5" in ended.stderr
    assert (folder.parent / f"eval-{good.stem}-seed0.json").exists()
    good.unlink()
    more = ("--set", "run.total_env_steps=4096")
    with Running(tmp_path / "one", "eval", str(wrong), *evaluate) as one, resume(tmp_path, *more) as run:
        for ended in (one.end(), run.end()):
            assert ended.returncode == 5, ended.stderr
            assert f"{wrong.name} is damaged or not a checkpoint of rltrain: version is -5" in ended.stderr
            assert "Traceback" not in ended.stderr
