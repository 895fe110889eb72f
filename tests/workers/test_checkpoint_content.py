"""What a checkpoint with a right checksum may hold, and what is refused by name."""

from __future__ import annotations

import io
import json
import traceback
from typing import Any

import pytest
import torch

from rltrain.errors import CheckpointError
from rltrain.workers.checkpoint_content import LARGEST_COUNT, SCHEMA, validate
from rltrain.workers.checkpoints import CheckpointStore
from tests.workers.checkpoint_states import CARRIED_BYTES, CONFIG, SNAPSHOT_BYTES, checkpoint_state

MISSING = object()


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good state with one entry replaced or taken away."""
    state = checkpoint_state()
    *tables, key = path.split(".")
    place = state
    for table in tables:
        place = place[table]
    if value is MISSING:
        del place[key]
    else:
        place[key] = value
    return state


def config_with(**options: Any) -> str:
    dumped = CONFIG.model_dump(mode="json")
    dumped["actors"].update(options)
    return json.dumps(dumped)


def nothing(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


WRONG = [
    *((key, MISSING) for key in SCHEMA),
    *((key, []) for key in SCHEMA),
    *((key, value) for key in ("version", "env_steps", "next_log") for value in (-5, 2**70, "x", 1.0, True, None)),
    ("train_state.updates", -1), ("train_state.bad_updates", 0.5), ("train_state.bad_updates_in_a_row", None),
    ("train_state.weights", nothing(8)), ("train_state.weights", torch.zeros(128)), ("train_state.weights", b"w" * 128),
    ("train_state.optimizer.mean", torch.zeros(15)), ("train_state.optimizer.mean_square", torch.zeros(4, 4)),
    ("train_state.optimizer.num_steps", 3), ("train_state.generator", nothing(4).float()),
    ("train_state.reward_scaler", {}), ("train_state.reward_scaler.running_return", torch.zeros(5).double()),
    ("train_state.reward_scaler.mean", torch.zeros(1).double()),
    ("train_state.weights", nothing(128).to_sparse()), ("train_state.weights", nothing(128).to("meta")),
    ("train_state.optimizer.mean", torch.zeros(16, requires_grad=True)),
    ("episodes.returns", ["a", "b"]), ("episodes.returns", [1.0]), ("episodes.lengths", [1.5, 2.0]),
    ("episodes.num_episodes", 1), ("episodes.num_episodes", "7"), ("episodes.returns", torch.ones(2)),
    ("spec", "no json"), ("spec", "[]"), ("spec", '{"obs": 3}'), ("spec", "[" * 100_000), ("spec", "{}"),
    ("config", "null"), ("config", "{}"), ("config", "\ud800"), ("config", config_with(num_actors="auto")),
    ("config", config_with(num_actors=-1)),
    ("model.weight", [1.0]), ("model", {3: torch.ones(1)}),
    ("previous_weights", nothing(64)), ("previous_weights", "w" * 128),
    ("snapshots.999", nothing(140)), ("snapshots.-1", nothing(140)), ("snapshots.01", nothing(140)),
    ("snapshots", {0: nothing(140)}), ("snapshots.0", b"140"), ("snapshots.0", nothing(CARRIED_BYTES)),
    ("snapshots.0", nothing(0)), ("snapshots.0", nothing(CARRIED_BYTES + 2 * SNAPSHOT_BYTES + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), WRONG, ids=[f"{i}-{path}" for i, (path, _) in enumerate(WRONG)])
def test_validate_of_a_wrong_entry_is_refused_by_its_name(path, value):
    entry, _, rest = path.partition(".")
    with pytest.raises(ValueError, match=entry) as caught:
        validate(changed(path, value))
    if entry not in ("snapshots", "episodes"):
        assert rest in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("whole", [[], None, 3, torch.ones(3), "text", {}])
def test_validate_of_no_table_at_all_is_refused(whole):
    with pytest.raises(ValueError, match="is missing" if whole == {} else "not a dict"):
        validate(whole)


def test_validate_leaves_what_the_learner_saves_as_it_is():
    for state in (
        checkpoint_state(),
        checkpoint_state(0),
        changed("version", LARGEST_COUNT),
        changed("previous_weights", nothing(128)),
        changed("snapshots", {}),
        changed("episodes", {"returns": [], "lengths": [], "num_episodes": 0}),
        {**checkpoint_state(), "of a later version": 3},
    ):
        assert validate(state) is state


def test_validate_of_earlier_weights_before_the_first_version_is_refused():
    state = checkpoint_state(0)
    state["previous_weights"] = nothing(128)
    with pytest.raises(ValueError, match="previous_weights"):
        validate(state)


class Hostile:
    def __reduce__(self):
        return (eval, ("1/0",))


@pytest.mark.parametrize("content", [Hostile(), [Hostile()], {"model": Hostile()}, 3, [1], {"version": 1}])
def test_load_of_other_content_says_what_and_gives_no_unsafe_advice(tmp_path, monkeypatch, content):
    store = CheckpointStore(tmp_path, keep=3, keep_best=False)
    good = store.save(checkpoint_state(1), 1, None)
    with monkeypatch.context() as patch:
        whole = torch.save
        patch.setattr("rltrain.workers.checkpoints.torch.save", lambda state, file: whole(content, file))
        path = store.save(checkpoint_state(2), 2, None)
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint of rltrain: ") as caught:
        CheckpointStore.load(path)
    told = "".join(traceback.format_exception(caught.value))
    assert str(path) in told
    assert "weights_only" not in told
    assert caught.value.exit_code == 5
    state, warnings, file = CheckpointStore.load(tmp_path)
    assert (state["version"], file, len(warnings)) == (1, good, 1)


def test_load_of_a_broken_pickle_with_a_right_checksum_is_refused(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=3, keep_best=False)
    whole = torch.save

    def save(state, file):
        archive = io.BytesIO()
        whole(state, archive)
        file.write(archive.getvalue().replace(b"version", b"\xff" * 7))

    with monkeypatch.context() as patch:
        patch.setattr("rltrain.workers.checkpoint_file.torch.save", save)
        path = store.save(checkpoint_state(2), 2, None)
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint of rltrain"):
        CheckpointStore.load(path)
