"""Checkpoints: round trip, what is kept, damage, a full disk, and kills at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from rltrain.errors import CheckpointError
from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import ROOT
from tests.workers.checkpoint_states import checkpoint_state


def state(value=1.0, size=1000):
    model = {"weight": torch.full((size,), float(value)), "count": torch.tensor(3)}
    return {**checkpoint_state(int(value), model), "note": "x"}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def name(env_steps):
    return f"checkpoint-{env_steps:012d}.pt"


def test_save_then_load_gives_the_same_state(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2, keep_best=True)
    assert store.latest() is None
    path = store.save(state(7.0), env_steps=500, score=None)
    assert path == tmp_path / "checkpoints" / name(500)
    for place in (path, path.parent, tmp_path):
        loaded, warnings, file = CheckpointStore.load(place)
        assert (warnings, file) == ([], path)
        assert torch.equal(loaded["model"]["weight"], torch.full((1000,), 7.0))
        assert (loaded["version"], loaded["note"]) == (7, "x")
    assert torch.load(path, weights_only=True)["version"] == 7
    assert names(path.parent) == [name(500)]


def test_store_keeps_the_newest_and_the_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=2, keep_best=True)
    for env_steps, score in ((1, None), (2, -5.0), (3, 9.0), (4, 9.0), (5, 1.0), (6, None)):
        store.save(state(), env_steps, score)
    assert names(tmp_path) == [name(4), name(5), name(6)]
    assert (store.best(), store.latest()) == (tmp_path / name(4), tmp_path / name(6))


def test_store_opened_again_knows_scores_and_order(tmp_path):
    for env_steps, score in ((1, 1e300), (2, -1e-300), (3, 0.0), (4, float("-inf"))):
        CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(), env_steps, score)
    assert names(tmp_path) == [name(1), name(4)]


def test_store_without_best_keeps_only_the_newest(tmp_path):
    store = CheckpointStore(tmp_path, keep=1, keep_best=False)
    for env_steps in (1, 2, 3):
        store.save(state(), env_steps, -env_steps)
    assert names(tmp_path) == [name(3)]


def test_store_resumed_from_an_older_checkpoint_counts_the_later_save_as_newest(tmp_path):
    store = CheckpointStore(tmp_path, keep=2, keep_best=False)
    for env_steps in (100, 200, 150):
        store.save(state(env_steps), env_steps, None)
    assert names(tmp_path) == [name(150), name(200)]
    assert CheckpointStore.load(tmp_path)[0]["version"] == 150
    store.save(state(160), 160, None)
    assert names(tmp_path) == [name(150), name(160)]


def test_store_saved_twice_at_one_step_holds_the_second(tmp_path):
    store = CheckpointStore(tmp_path, keep=2, keep_best=False)
    store.save(state(1), 100, None)
    store.save(state(2), 100, None)
    assert CheckpointStore.load(tmp_path)[0]["version"] == 2


def test_store_opened_again_removes_temporary_files_and_nothing_else(tmp_path):
    (tmp_path / f".{name(3)}.tmp").write_bytes(b"half a checkpoint")
    (tmp_path / "mine.txt").write_text("notes")
    CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(), 1, None)
    assert names(tmp_path) == [name(1), "mine.txt"]


def test_load_recognises_a_flipped_bit_anywhere(tmp_path):
    path = CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(size=50), 1, 2.5)
    good = path.read_bytes()
    rng = random.Random(5)
    places = [0, len(good) - 1, *range(len(good) - 150, len(good)), *(rng.randrange(len(good)) for _ in range(200))]
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            CheckpointStore.load(path)


@pytest.mark.parametrize("cut", ["empty", "half", "one byte short", "one byte more"])
def test_load_recognises_a_wrong_length(tmp_path, cut):
    path = CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(), 1, None)
    good = path.read_bytes()
    cuts = {"empty": b"", "half": good[: len(good) // 2], "one byte short": good[:-1], "one byte more": good + b"a"}
    path.write_bytes(cuts[cut])
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointStore.load(path)


@pytest.mark.parametrize("place", [700, -3], ids=["content", "label"])
def test_load_passes_over_a_damaged_newest_with_a_warning(tmp_path, place):
    store = CheckpointStore(tmp_path, keep=3, keep_best=True)
    for env_steps in (1, 2):
        store.save(state(env_steps), env_steps, None)
    path = tmp_path / name(2)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 128
    path.write_bytes(damaged)
    loaded, warnings, file = CheckpointStore.load(tmp_path)
    assert loaded["version"] == 1
    assert file == tmp_path / name(1)
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert "the checkpoint before it is used" in warnings[0].lower()


def test_load_of_what_is_no_checkpoint_says_what_is_wrong(tmp_path):
    with pytest.raises(CheckpointError, match=r"No such file"):
        CheckpointStore.load(tmp_path / "nothing.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* every checkpoint\.every_s or"):
        CheckpointStore.load(tmp_path)
    torch.save({"a": 1}, tmp_path / name(1))
    with pytest.raises(CheckpointError, match="no checkpoint of rltrain"):
        CheckpointStore.load(tmp_path / name(1))
    with pytest.raises(CheckpointError, match="no good checkpoint in"):
        CheckpointStore.load(tmp_path)


def test_load_of_another_format_says_so(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rltrain.workers.checkpoint_file.FORMAT", 3)
        path = CheckpointStore(tmp_path, keep=1, keep_best=True).save(state(), 1, None)
    with pytest.raises(CheckpointError, match="has checkpoint format 3; this version of rltrain reads format 2"):
        CheckpointStore.load(path)


def test_store_on_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="opening the checkpoint folder failed"):
        CheckpointStore(tmp_path / "file", keep=1, keep_best=True)


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_save_on_a_full_disk_leaves_the_old_ones_and_succeeds_later(small_disk):
    store = CheckpointStore(small_disk, keep=2, keep_best=True)
    store.save(state(1.0, size=300_000), 1, None)
    needed = r"No space left on device \([\d,]+ bytes needed, [\d,]+ bytes free\)"
    with pytest.raises(CheckpointError, match=needed) as full:
        store.save(state(2.0, size=300_000), 2, None)
    assert full.value.exit_code == 5
    assert str(small_disk / name(2)) in str(full.value)
    assert "Earlier checkpoints are untouched. Free some space, or lower checkpoint.keep." in str(full.value)
    assert names(small_disk) == [name(1)]
    assert CheckpointStore.load(small_disk)[0]["version"] == 1
    store.save(state(3.0, size=1000), 3, None)
    assert CheckpointStore.load(small_disk)[0]["version"] == 3


def test_save_that_would_replace_a_checkpoint_leaves_it_when_there_is_no_room(small_disk):
    """The old one is there until the new one is whole."""
    store = CheckpointStore(small_disk, keep=2, keep_best=True)
    store.save(state(1.0, size=300_000), 7, None)
    with pytest.raises(CheckpointError):
        store.save(state(2.0, size=300_000), 7, None)
    assert CheckpointStore.load(small_disk)[0]["version"] == 1


def test_save_of_a_large_one_gives_signs_of_life_and_never_holds_it_twice(tmp_path):
    store, beats = CheckpointStore(tmp_path, keep=1, keep_best=False), []
    large = checkpoint_state(1)
    large["training"]["replay"]["store.obs"] = torch.arange(100 << 20, dtype=torch.uint8)
    before = psutil.Process().memory_info().rss

    def beat():
        beats.append(psutil.Process().memory_info().rss - before)

    store.save(large, 1, None, beat)
    assert len(beats) >= 6
    assert max(beats) < 50 << 20
    loaded = CheckpointStore.load(tmp_path)[0]["training"]["replay"]["store.obs"]
    assert torch.equal(loaded, large["training"]["replay"]["store.obs"])


@pytest.mark.parametrize(
    ("keep", "num_saves", "num_more"), [(2, 1, 1), (2, 9, 3), (5, 2, 2), (5, float("inf"), 6), (1, 0, 1)]
)
def test_missing_room_counts_the_checkpoints_that_will_lie_side_by_side(small_disk, keep, num_saves, num_more):
    """One is there already; the one being written comes on top of those that are kept."""
    store = CheckpointStore(small_disk, keep=keep, keep_best=True)
    store.save(state(size=10), 1, None)
    free = shutil.disk_usage(small_disk).free
    said = store.missing_room(free // num_more + 1, num_saves)
    assert f"{num_more} more of about" in said
    assert f"{free:,} bytes free" in said
    assert store.missing_room(free // num_more, num_saves) is None


LIMITED = """
import resource, sys, torch
from pathlib import Path
from rltrain.errors import CheckpointError
from rltrain.workers.checkpoints import CheckpointStore
from tests.workers.checkpoint_states import checkpoint_state
store = CheckpointStore(Path(sys.argv[1]), 2, True)
store.save(checkpoint_state(1, {"w": torch.ones(10)}), 1, None)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(checkpoint_state(2, {"w": torch.ones(100_000)}), 2, None)
except CheckpointError as error:
    print(error.exit_code, error)
"""


def test_save_beyond_the_file_size_limit_leaves_the_old_ones(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    assert done.stdout.startswith("5 writing a checkpoint failed, there is no room: ")
    assert "File too large" in done.stdout
    assert names(tmp_path) == [name(1)]
    assert CheckpointStore.load(tmp_path)[0]["version"] == 1


SAVING = """
import os, sys, torch
from pathlib import Path
from rltrain.errors import CheckpointError
from rltrain.workers.checkpoints import CheckpointStore
from tests.workers.checkpoint_states import checkpoint_state
for line in sys.stdin:
    child = os.fork()
    if child:
        print("pid", child, flush=True)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    store = CheckpointStore(Path(sys.argv[1]), 2, True)
    at = int(line)
    while True:
        at += 1
        store.save(checkpoint_state(at, {"w": torch.full((20_000,), float(at))}), at, float(at % 7))
        os.write(1, b"saved %d\\n" % at)
"""


def kill_while_saving(folder, num_kills, seed):
    """Let a child save without pause, kill it at a random moment, look; torch is imported once, by the parent."""
    rng = random.Random(seed)
    newest = 0
    parent = subprocess.Popen(
        [sys.executable, "-c", SAVING, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT,
    )
    for _ in range(num_kills):
        parent.stdin.write(f"{newest}\n")
        parent.stdin.flush()
        lines = iter(parent.stdout.readline, "")
        heard = dict([next(lines).split(), next(lines).split()])
        moment = time.monotonic() + rng.uniform(0, 0.02)
        while time.monotonic() < moment:
            pass
        os.kill(int(heard["pid"]), signal.SIGKILL)
        while "ended" not in heard:
            heard.update([next(lines).split()])
        assert heard["ended"] == "-9"
        loaded, warnings, _ = CheckpointStore.load(folder)
        assert warnings == []
        assert loaded["version"] in (int(heard["saved"]), int(heard["saved"]) + 1)
        assert torch.equal(loaded["model"]["w"], torch.full((20_000,), float(loaded["version"])))
        newest = loaded["version"]
    parent.communicate(timeout=20)


@pytest.mark.parametrize(
    "num_kills", [pytest.param(30, id="30"), pytest.param(200, id="200", marks=pytest.mark.stress)]
)
def test_store_killed_while_saving_always_has_a_good_newest(tmp_path, num_kills):
    kill_while_saving(tmp_path, num_kills, seed=num_kills)
