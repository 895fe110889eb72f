"""When `run.time_limit_s` begins and ends, and the speed, by a clock that the test sets."""

from __future__ import annotations

import pytest

from rltrain.workers import training_clock
from rltrain.workers.training_clock import TrainingClock


@pytest.fixture
def clock(monkeypatch):
    """A clock at 100 s; `clock[0]` may be set."""
    now = [100.0]
    monkeypatch.setattr(training_clock.time, "monotonic", lambda: now[0])
    return now


def test_time_limit_counts_from_the_first_update(clock):
    limit = TrainingClock(5.0, 120.0)
    limit.attach()
    clock[0] = 150.0
    assert not limit.is_over, "a slow start takes nothing of it"
    limit.learned(0)
    clock[0] = 154.9
    assert not limit.is_over
    clock[0] = 155.0
    assert limit.is_over


def test_time_limit_without_an_update_ends_after_the_longest_start(clock):
    limit = TrainingClock(5.0, 120.0)
    limit.attach()
    clock[0] = 224.9
    assert not limit.is_over
    limit.learned(0)
    clock[0] = 225.0
    assert limit.is_over, "a late first update does not begin it anew"


def test_time_limit_of_none_and_before_it_begins_is_never_over(clock):
    limits = TrainingClock(None, 1.0), TrainingClock(1.0, 1.0)
    limits[0].attach()
    limits[0].learned(0)
    clock[0] = 1e12
    assert not limits[0].is_over
    assert not limits[1].is_over


def test_env_steps_per_s_is_between_the_ends_of_the_first_and_the_last_update(clock):
    made = TrainingClock(None, 1.0)
    made.attach()
    assert made.env_steps_per_s is None
    clock[0] = 200.0
    made.learned(1000)
    assert made.env_steps_per_s is None, "what came before the first update is not known"
    clock[0] = 204.0
    made.learned(1800)
    clock[0] = 1000.0
    assert made.env_steps_per_s == 200
