"""How much memory a store takes, when, and from where."""

from __future__ import annotations

import os
import pickle
import resource
from itertools import pairwise
from math import prod

import numpy as np
import pytest

from rltrain import native
from rltrain.errors import ConfigError
from rltrain.fields import LeafSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.mapping import map_memory
from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from tests.replay.streams import Stream, fragment_for, gathered, layout, spec

PONG = ReplayLayout(spec(LeafSpec("obs", "box", (4, 84, 84), "uint8")), 2, 8, 1_000_000, 16, 3, 0.99, 4)
MIB = 1 << 20


def resident_bytes() -> int:
    """Memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_million_pong_transitions_need_less_than_7_and_a_half_gigabytes():
    """Stored once for each frame; with both stacks of each transition they are 56 GB."""
    assert 1_000_000 * 84 * 84 < PONG.num_bytes <= 7_500_000_000


def test_memory_is_taken_as_it_fills():
    before = resident_bytes()
    store = ReplayStore(PONG)
    store.insert(0, fragment_for(PONG), False)
    # A huge page, 2 MiB, for each ring of frames, as long as rings share none, and some for the rest.
    assert resident_bytes() - before < 100 * MIB
    assert store.size == 8 * 13


@pytest.mark.parametrize("made", [layout(rows=5000), layout(stack=4, rows=5000)], ids=["plain", "stacked"])
def test_number_of_bytes_counts_all_that_is_kept(made):
    kept = sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in made.arrays().values())
    priorities = Priorities(made.num_items, 0.6, 1e-6, 0)
    tree = priorities.tree._sums.nbytes + priorities.tree._mins.nbytes + priorities.generations.nbytes
    assert kept + tree <= made.num_bytes + 4096
    assert made.num_bytes < 1.03 * (kept + tree)


def test_arrays_lie_beside_each_other_and_begin_with_a_cache_line():
    made = layout(stack=3, rows=333, num_envs=3)
    store = ReplayStore(made)
    starts = {name: native.address_of(x) for name, x in store._arrays.items()}
    ends = sorted((start, start + store._arrays[name].nbytes) for name, start in starts.items())
    assert all(start % 64 == 0 for start in starts.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_layout_survives_the_way_to_another_process():
    assert pickle.loads(pickle.dumps(PONG)) == PONG


def test_forked_children_do_not_get_the_memory():
    store = ReplayStore(layout(rows=100_000))
    address = native.address_of(store._arrays["action"])
    with open("/proc/self/smaps") as file:
        lines = iter(file.read().splitlines())
    for line in lines:
        start, _, end = line.split(" ")[0].partition("-")
        if end and int(start, 16) <= address < int(end, 16):
            break
    flags = next(line for line in lines if line.startswith("VmFlags"))
    assert "dc" in flags.split()


def test_file_holds_what_memory_would(tmp_path):
    made = layout(stack=2)
    stream, stores = Stream(1, made), [ReplayStore(made), ReplayStore(made, tmp_path / "replay.bin")]
    for _ in range(20):
        fragment = stream.next()
        results = [store.insert(*fragment) for store in stores]
    items = results[0][0].tolist()
    first, second = (gathered(store, items) for store in stores)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_file_has_all_its_room_from_the_start_and_is_of_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(type(tmp_path), "unlink", lambda path: None)  # to look at it
    file = tmp_path / "replay.bin"
    file.write_bytes(b"left over" * 1000)
    file.chmod(0o666)
    made = layout(rows=20_000)
    store = ReplayStore(made, file)
    assert store.size == 0
    assert not any(x.any() for x in store._arrays.values()), "what was in it is gone"
    assert file.stat().st_size >= made.offsets()["end"]
    assert file.stat().st_blocks * 512 >= made.offsets()["end"], "a sparse file would be SIGBUS when the disk is full"
    assert file.stat().st_mode & 0o777 == 0o600


def test_file_larger_than_the_disk_has_room_for_says_both_numbers_and_takes_nothing(tmp_path):
    file, num_bytes = tmp_path / "replay.bin", 1 << 50
    with pytest.raises(ConfigError, match=r"needs 1,048,576\.0 GiB in .*: [0-9.,]+ [GM]iB are free there"):
        map_memory(num_bytes, file)
    assert not file.exists()


def test_file_that_the_disk_ends_in_is_an_error_that_says_what_to_do(tmp_path):
    """The room went to somebody else between the look and the reservation: here the limit for files, for real."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"replay.in_file = true needs .* Use a smaller replay.capacity"):
            ReplayStore(layout(rows=20_000), tmp_path / "replay.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "replay.bin").exists()


@pytest.mark.parametrize("place", ["missing/replay.bin", "."])
def test_file_that_cannot_be_made_is_an_error_that_says_why(tmp_path, place):
    with pytest.raises(ConfigError, match=r"replay.in_file = true needs .* directory"):
        ReplayStore(layout(), tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_memory_that_the_process_does_not_get_is_an_error_that_says_what_to_do():
    with pytest.raises(ConfigError, match=r"replay.capacity needs .* GiB of memory.*replay.in_file = true"):
        map_memory(1 << 62, None)


@pytest.mark.parametrize(("rows", "problems"), [(8, 0), (7, 1)])
def test_layout_of_too_few_rows_says_how_many_it_needs(rows, problems):
    found = layout(length=4, n_step=1, rows=rows, num_envs=2).check()
    assert len(found) == problems
    assert all("at least 16" in text and text.startswith("replay.capacity = 14 ") for text in found)


def test_layout_without_stacks_where_frames_are_to_be_stacked_says_so():
    made = ReplayLayout(spec(LeafSpec("obs.x", "box", (3,), "float32")), 1, 1, 100, 4, 1, 0.9, 4)
    assert "obs.x has no first axis" in made.check()[0]


def test_capacity_is_rounded_up_to_whole_rows():
    made = ReplayLayout(spec(LeafSpec("obs", "box", (3,), "float32")), 3, 4, 100, 4, 1, 0.9)
    assert (made.rows_per_lane, made.num_items) == (9, 108)
