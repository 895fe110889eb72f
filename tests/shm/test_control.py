"""Control words."""

from __future__ import annotations

import threading
import time

import pytest

from rltrain.shm.control import Control
from tests.shm.arenas import arena


@pytest.fixture
def shared():
    created = arena()
    yield created
    created.close()


def test_words_of_a_new_arena_are_unset(shared):
    control = Control(shared)
    assert (control.stop, control.finish, control.snapshot_fragment) == (False, False, None)


def test_words_set_by_one_are_seen_by_another(shared):
    control, other = Control(shared), Control(shared)
    control.stop, control.finish, control.snapshot_fragment = True, True, 0
    assert (other.stop, other.finish, other.snapshot_fragment) == (True, True, 0)
    control.stop, control.snapshot_fragment = False, None
    assert (other.stop, other.finish, other.snapshot_fragment) == (False, True, None)


@pytest.mark.parametrize("change", [
    lambda c: setattr(c, "stop", True), lambda c: setattr(c, "finish", True),
    lambda c: setattr(c, "snapshot_fragment", 3), Control.notify,
])
def test_wait_any_change_wakes(shared, change):
    control = Control(shared)
    waiter = threading.Thread(target=control.wait, args=(30,))
    waiter.start()
    waiter.join(0.03)
    assert waiter.is_alive(), "the wait did not block"
    change(Control(shared))
    waiter.join(10)
    assert not waiter.is_alive()


def test_wait_change_before_the_wait_is_not_missed(shared):
    control = Control(shared)
    Control(shared).notify()
    started = time.monotonic()
    control.wait(30)
    assert time.monotonic() - started < 10


def test_wait_without_change_returns_after_its_time(shared):
    started = time.monotonic()
    Control(shared).wait(0.05)
    assert 0.05 <= time.monotonic() - started < 5
