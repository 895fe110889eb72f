"""Snapshot areas."""

from __future__ import annotations

import pytest

from rltrain.shm.snapshots import SnapshotArea
from tests.shm.arenas import arena


@pytest.fixture
def shared():
    created = arena(snapshot_bytes=50)
    yield created
    created.close()


def test_read_nothing_written_returns_none(shared):
    assert SnapshotArea(shared).read(0) is None


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(8)), bytes(range(49)), bytes(range(50))])
def test_read_other_process_gets_what_was_written(shared, payload):
    assert SnapshotArea(shared).write(1, 7, payload)
    reader = SnapshotArea(shared)
    assert reader.read(1) == (7, payload)
    assert reader.read(0) is None


def test_write_shorter_snapshot_replaces_the_longer(shared):
    area = SnapshotArea(shared)
    area.write(3, 1, b"long payload")
    area.write(3, 2, b"short")
    assert area.read(3) == (2, b"short")


def test_write_too_large_is_refused_and_keeps_the_old(shared):
    area = SnapshotArea(shared)
    area.write(0, 1, b"old")
    assert not area.write(0, 2, bytes(51))
    assert area.read(0) == (1, b"old")


def test_read_writer_died_halfway_returns_none_until_written_again(shared):
    area = SnapshotArea(shared)
    area.write(0, 1, b"old")
    sequence = shared.view("snapshots", "uint64")[:1]
    sequence += 1  # as a writer leaves it that dies while it copies
    assert area.read(0) is None
    area.write(0, 2, b"new")
    assert area.read(0) == (2, b"new")


def test_read_payload_changed_underneath_returns_none(shared):
    area = SnapshotArea(shared)
    area.write(0, 1, b"payload of some length")
    shared.view("snapshot_areas")[9] ^= 1
    assert area.read(0) is None


def test_lane_out_of_range_is_refused(shared):
    with pytest.raises(IndexError, match="lane 4"):
        SnapshotArea(shared).write(4, 0, b"")
