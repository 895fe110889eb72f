"""The weight board: which versions can be read, and that none is ever torn."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from rltrain.shm.control import Control
from rltrain.shm.weights import WeightBoard
from tests.shm.arenas import arena, start_child

NBYTES = 1003


@pytest.fixture
def board():
    shared = arena(weight_bytes=NBYTES)
    yield WeightBoard(shared)
    shared.close()


def flat_of(version):
    return np.random.default_rng(version).integers(0, 256, NBYTES).astype(np.uint8)


def read(board, version):
    out = np.zeros(NBYTES, np.uint8)
    found = board.read(version, out)
    if found is not None:
        np.testing.assert_array_equal(out, flat_of(found))
    return found


def test_read_empty_board_returns_none(board):
    assert board.latest_version == -1
    assert read(board, None) is None
    assert read(board, 0) is None


def test_read_two_newest_versions_are_there_others_are_not(board):
    for version in range(5):
        board.publish(version, flat_of(version))
    assert board.latest_version == 4
    assert read(board, None) == 4
    assert [read(board, version) for version in range(6)] == [None, None, None, 3, 4, None]


def test_publish_learner_restarted_from_older_version_hides_the_newer_one(board):
    for version in range(8):
        board.publish(version, flat_of(version))
    board.publish(3, flat_of(3))
    board.publish(4, flat_of(4))
    assert [read(board, version) for version in (None, 3, 4, 5, 6, 7)] == [4, 3, 4, None, None, None]
    board.publish(8, flat_of(8))
    board.publish(5, flat_of(5))
    assert read(board, 8) is None


def test_wait_version_wakes_at_the_version_it_waits_for(board):
    found = []
    waiter = threading.Thread(target=lambda: found.append(board.wait_version(1, 30)))
    waiter.start()
    board.publish(0, flat_of(0))
    waiter.join(0.05)
    assert waiter.is_alive(), "version 0 ended the wait for version 1"
    board.publish(1, flat_of(1))
    waiter.join(10)
    assert found == [1]


def test_wait_version_time_over_returns_the_newest(board):
    board.publish(0, flat_of(0))
    assert board.wait_version(1, 0.02) == 0


@pytest.mark.parametrize("flat", [
    np.zeros(NBYTES - 1, np.uint8), np.zeros(NBYTES, np.int8), np.zeros(2 * NBYTES, np.uint8)[::2],
])
def test_weights_of_wrong_shape_are_refused(board, flat):
    with pytest.raises(ValueError, match="uint8"):
        board.publish(0, flat)
    with pytest.raises(ValueError, match="uint8"):
        board.read(0, flat)


def test_publish_negative_version_is_refused(board):
    with pytest.raises(ValueError, match="version -1"):
        board.publish(-1, flat_of(0))


@pytest.mark.timeout(60)
def test_read_while_another_process_publishes_is_never_torn():
    shared = arena(weight_bytes=200_003)
    board, control = WeightBoard(shared), Control(shared)
    out = np.zeros(200_003, np.uint8)
    writer = start_child("tests.shm.weights_child", shared)
    try:
        assert board.wait_version(0, 30) >= 0
        versions, deadline = set(), time.monotonic() + 30
        while len(versions) < 50:
            assert time.monotonic() < deadline, f"only versions {versions} were read"
            newest = board.latest_version
            for wanted in (None, newest, newest - 1):
                found = board.read(wanted, out)
                if found is not None:
                    assert (out == found % 251).all(), f"version {found} is torn"
                    versions.add(found)
    finally:
        control.stop = True
        writer.communicate(timeout=10)
        shared.close()
