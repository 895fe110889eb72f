"""What is never written into a checkpoint, and what is never made of one: numbers that are none, devices, commands."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from rltrain.errors import CheckpointError, TrainingError
from rltrain.workers.checkpoints import CheckpointStore
from tests.workers.checkpoint_states import checkpoint_state


def state(weight: torch.Tensor | None = None) -> dict[str, Any]:
    return checkpoint_state(model={"weight": torch.ones(1000) if weight is None else weight})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_save_of_non_finite_weights_is_refused_by_name(tmp_path, bad):
    store = CheckpointStore(tmp_path, keep=1, keep_best=True)
    first = store.save(state(), 1, None)
    broken = state()
    broken["model"]["weight"][17] = bad
    with pytest.raises(TrainingError, match=r"1 of 1000 values of model\.weight are"):
        store.save(broken, 2, None)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@pytest.mark.parametrize(
    "path", ["optimizer.mean", "optimizer.mean_square", "optimizer.num_steps", "reward_scaler.variance"]
)
def test_save_of_a_non_finite_optimiser_or_statistic_is_refused_by_name(tmp_path, path):
    broken = state()
    part, name = path.split(".")
    broken["train_state"][part][name].fill_(float("inf"))
    with pytest.raises(TrainingError, match=f"values of train_state.{path} are not finite"):
        CheckpointStore(tmp_path, keep=1, keep_best=True).save(broken, 2, None)
    assert list(tmp_path.iterdir()) == []


def test_save_of_tensors_of_another_device_copies_them_to_the_cpu(tmp_path):
    """A tensor of the device `meta` cannot be copied, which shows that it is tried."""
    elsewhere = state()
    elsewhere["train_state"]["optimizer"]["mean"] = torch.zeros(16, device="meta")
    with pytest.raises(NotImplementedError, match="copy out of meta tensor"):
        CheckpointStore(tmp_path, keep=1, keep_best=True).save(elsewhere, 1, None)


def test_load_of_a_file_with_cuda_tensors_gives_tensors_of_the_cpu(tmp_path, monkeypatch):
    """The file says `cuda:0` of each tensor; without `map_location` only a machine with such a device reads it."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        path = CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(weight=torch.full((1000,), 3.0)), 1, None)
    assert b"cuda:0" in path.read_bytes()
    loaded, *_ = CheckpointStore.load(path)
    assert loaded["model"]["weight"].device.type == "cpu"
    assert torch.equal(loaded["model"]["weight"], torch.full((1000,), 3.0))


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, flag):
        self.flag = flag

    def __reduce__(self):
        return os.system, (f"touch {self.flag}",)


def test_load_of_a_pickle_that_would_run_a_command_refuses_it_unrun(tmp_path):
    flag = tmp_path / "flag"
    folder = tmp_path / "checkpoints"
    path = CheckpointStore(folder, keep=1, keep_best=True).save({**state(), "note": Runs(flag)}, 1, None)
    with pytest.raises(CheckpointError, match="is damaged or not a checkpoint of rltrain: its content cannot be read"):
        CheckpointStore.load(path)
    assert not flag.exists()
    torch.load(path, weights_only=False)
    assert flag.exists(), "else this test could not fail"
