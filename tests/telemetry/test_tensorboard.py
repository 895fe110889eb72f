from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from rltrain.shm.counters import NUM_BINS
from rltrain.telemetry import tensorboard
from rltrain.telemetry.tensorboard import TensorboardWriter
from tests.runs import until

pytestmark = pytest.mark.timeout(120)


def read(folder) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return accumulator.Reload()


def steps(accumulator: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in accumulator.Scalars(tag)]


def test_writer_scalars_text_and_histogram_are_read_back(tmp_path):
    writer = TensorboardWriter(tmp_path / "tensorboard", 'name = "a"', {})
    writer.scalars({"loss/entropy": 0.5, "rollout/return_mean": -3.0}, 1000)
    counts = np.zeros(NUM_BINS, np.int64)
    counts[[2, 5]] = 3, 1
    writer.histogram("lag/policy_lag_versions", counts, 1000)
    writer.text("run/verdict", "env-bound", 1000)
    assert writer.close(timeout_s=30)
    found = read(tmp_path / "tensorboard")
    assert [(e.step, e.value) for e in found.Scalars("rollout/return_mean")] == [(1000, -3.0)]
    histogram = found.Histograms("lag/policy_lag_versions")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.min, histogram.max) == (4, 11, 2, 6)
    assert list(histogram.bucket) == [3, 0, 0, 1]
    assert list(histogram.bucket_limit) == [3, 4, 5, 6]
    assert found.Tensors("run/verdict")[0].tensor_proto.string_val == [b"env-bound"]
    assert b'name = "a"' in found.Tensors("run/config")[0].tensor_proto.string_val[0]


def test_writer_first_point_of_a_curve_carries_its_meaning_from_the_table(tmp_path):
    writer = TensorboardWriter(tmp_path, "", {})
    for env_steps in (10, 20):
        writer.scalars({"lag/dropped_env_steps": 1.0, "own/figure": 2.0, "ledger/actor/boot": 0.5}, env_steps)
    assert writer.close(timeout_s=30)
    found = read(tmp_path)
    assert "dropped for being too old" in found.SummaryMetadata("lag/dropped_env_steps").summary_description
    assert "share of wall time" in found.SummaryMetadata("ledger/actor/boot").summary_description
    assert steps(found, "lag/dropped_env_steps") == steps(found, "own/figure") == [10, 20]


def test_writer_hparams_are_read_back_with_their_types_and_the_end(tmp_path):
    options = {"run": {"seed": 3, "target_return": None}, "learner": {"compile": False}, "sizes": (64, 64)}
    writer = TensorboardWriter(tmp_path, "", options)
    writer.hparams({"final/return_mean": 480.0}, 2000)
    assert writer.close(timeout_s=30)
    found = read(tmp_path)
    assert [e.value for e in found.Scalars("final/return_mean")] == [480.0]
    contents = found.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["run.seed"].number_value == 3
    assert start.hparams["run.target_return"].string_value == "None"
    assert start.hparams["learner.compile"].WhichOneof("kind") == "bool_value"
    assert start.hparams["sizes"].string_value == "(64, 64)"
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    assert end.status == 1


def test_writer_resume_voids_points_beyond_the_checkpoint(tmp_path):
    first = TensorboardWriter(tmp_path, "first", {})
    for env_steps in (500, 1000, 1500):
        first.scalars({"rollout/return_mean": env_steps}, env_steps)
    assert first.close(timeout_s=30)
    second = TensorboardWriter(tmp_path, "second", {}, purge_step=1000)
    for env_steps in (1000, 1200, 1500, 2000):
        second.scalars({"rollout/return_mean": -env_steps}, env_steps)
    assert second.close(timeout_s=30)
    found = read(tmp_path)
    assert [e.value for e in found.Scalars("rollout/return_mean")] == [500, 1000, -1200, -1500, -2000]
    assert [e.step for e in found.Tensors("run/config")] == [0, 1001]
    times = [e.wall_time for e in found.Scalars("rollout/return_mean")]
    assert times == sorted(times)


def test_writer_point_that_does_not_advance_is_left_out(tmp_path):
    writer = TensorboardWriter(tmp_path, "", {})
    for env_steps in (0, 10, 10, 5, 20):
        writer.scalars({"a/b": env_steps}, env_steps)
    assert writer.close(timeout_s=30)
    assert steps(read(tmp_path), "a/b") == [0, 10, 20]


def test_writer_without_points_makes_no_file(tmp_path):
    writer = TensorboardWriter(tmp_path / "tensorboard", "", {})
    assert writer.close()
    assert list(tmp_path.iterdir()) == []


def test_writer_folder_that_cannot_be_made_gives_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    writer = TensorboardWriter(tmp_path / "file" / "tensorboard", "", {}, on_warning=warnings.append)
    for env_steps in range(100):
        writer.scalars({"a/b": 1.0}, env_steps)
    assert writer.close(timeout_s=30)
    assert len(warnings) == 1
    assert "Training goes on" in warnings[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full")
def test_writer_full_disk_gives_one_warning(tmp_path, monkeypatch):
    real_open = open

    def open_full(path, *arguments, **options):
        return real_open("/dev/full" if "tfevents" in str(path) else path, *arguments, **options)

    monkeypatch.setattr("builtins.open", open_full)
    warnings: list[str] = []
    writer = TensorboardWriter(tmp_path, "", {}, on_warning=warnings.append)
    writer.scalars({"a/b": 1.0}, 1)
    assert writer.close(timeout_s=30)
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_writer_goes_on_in_another_file_once_the_disk_has_room(tmp_path, monkeypatch):
    real_open, is_full, warned = open, threading.Event(), threading.Event()

    def open_maybe_full(path, *arguments, **options):
        is_event_file = "tfevents" in str(path) and is_full.is_set()
        return real_open("/dev/full" if is_event_file else path, *arguments, **options)

    monkeypatch.setattr("builtins.open", open_maybe_full)
    monkeypatch.setattr(tensorboard, "RETRY_S", 0.05)
    is_full.set()
    writer = TensorboardWriter(tmp_path, "name", {}, on_warning=lambda _: warned.set())
    writer.scalars({"a/b": 1.0}, 1)
    assert warned.wait(30)
    writer.scalars({"a/b": 1.0}, 2)
    is_full.clear()
    until(lambda: list(tmp_path.glob("events*")), "a file is made")
    writer.scalars({"a/b": 1.0}, 3)
    assert writer.close(timeout_s=30)
    found = read(tmp_path)
    assert steps(found, "a/b")[-2:] == [2, 3]
    assert b"name" in found.Tensors("run/config")[0].tensor_proto.string_val[0]


def test_writer_whose_disk_fills_up_at_the_end_closes_in_time_and_leaves_no_empty_files(tmp_path, monkeypatch):
    real_open, opened = open, []

    def open_full(path, *arguments, **options):
        if "tfevents" not in str(path):
            return real_open(path, *arguments, **options)
        opened.append(real_open(path, *arguments, **options))
        return opened[-1]

    monkeypatch.setattr("builtins.open", open_full)
    warnings: list[str] = []
    writer = TensorboardWriter(tmp_path, "", {}, on_warning=warnings.append)
    writer.scalars({"a/b": 1.0}, 1)
    until(lambda: list(tmp_path.glob("events*")) and next(tmp_path.glob("events*")).stat().st_size, "it has begun")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, opened[-1].fileno())
    os.close(full)
    writer.scalars({"a/b": 1.0}, 2)
    assert writer.close(timeout_s=30)
    assert len(warnings) == 1
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sizes
    assert all(sizes)


def test_writer_slow_disk_drops_points_with_one_warning_and_never_blocks(tmp_path, monkeypatch):
    may_open = threading.Event()

    class SlowFile(tensorboard._EventFile):
        def __init__(self, folder):
            assert may_open.wait(timeout=30)
            super().__init__(folder)

    monkeypatch.setattr(tensorboard, "_EventFile", SlowFile)
    monkeypatch.setattr(tensorboard, "MAX_QUEUED", 3)
    warnings: list[str] = []
    writer = TensorboardWriter(tmp_path, "", {}, on_warning=warnings.append)
    for env_steps in range(10):
        writer.scalars({"a/b": 1.0}, env_steps)
    assert not writer.close(timeout_s=0.01)
    may_open.set()
    assert writer.close(timeout_s=30)
    assert steps(read(tmp_path), "a/b") == [0, 1, 2]
    assert len(warnings) == 1
    assert "dropped" in warnings[0]


def test_writer_import_loads_neither_tensorboard_nor_torch():
    code = (
        "import sys, rltrain.telemetry.tensorboard, rltrain.telemetry.ledger, rltrain.telemetry.plain;"
        "print(*(m for m in ('tensorboard', 'torch', 'rich', 'google.protobuf') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
