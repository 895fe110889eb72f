"""Schedules."""

from __future__ import annotations

import pytest

from rltrain.algos.schedules import linear, progress_at


@pytest.mark.parametrize(("env_steps", "expected"), [(0, 3e-4), (40_000, 1.8e-4), (70_000, 0.9e-4), (100_000, 0.0)])
def test_linear_depends_on_the_env_steps_alone(env_steps, expected):
    """Case C08."""
    assert linear(3e-4, 0.0, progress_at(env_steps, 100_000)) == pytest.approx(expected, abs=1e-12)


def test_linear_after_the_total_was_extended_is_steeper_later():
    """Case C08: the schedule spans the new total."""
    assert linear(3e-4, 0.0, progress_at(40_000, 200_000)) == pytest.approx(2.4e-4)


def test_linear_without_an_end_is_constant_and_stops_at_the_total():
    assert linear(0.5, None, 0.7) == 0.5
    assert linear(1.0, 0.25, progress_at(150, 100)) == 0.25
