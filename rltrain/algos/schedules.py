"""Schedules: pure functions of the env steps learned from so far, so that a resumed run continues them."""

from __future__ import annotations

from typing import NamedTuple

from rltrain.config.algorithms import AppoConfig, PpoConfig


class Rates(NamedTuple):
    """What the schedules say for one batch."""

    learning_rate: float
    entropy_coef: float

    @classmethod
    def at(cls, config: PpoConfig | AppoConfig, progress: float) -> Rates:
        """Return the values at `progress`, in [0, 1]."""
        return cls(
            linear(config.learning_rate, config.learning_rate_end, progress),
            linear(config.entropy_coef, config.entropy_coef_end, progress),
        )


def progress_at(env_steps: int, total_env_steps: int) -> float:
    """Return the part of training that is done, in [0, 1]."""
    return min(1.0, env_steps / total_env_steps)


def linear(start: float, end: float | None, progress: float) -> float:
    """Go from `start` to `end` in a straight line.

    Args:
        start: value at progress 0.
        end: value at progress 1; None keeps `start`.
        progress: part of training that is done, in [0, 1].
    """
    return start if end is None else start + (end - start) * progress
