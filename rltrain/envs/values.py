"""What a single env may return as reward and flag, and where it happened in a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrain.envs.seeding import FIRST_EVAL_ENV_INDEX

LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32; a larger one would become infinite there."""

FIVE_VALUES = (
    "step() did not return five values. Accepted: (observation, reward, terminated, truncated, info) of the Gymnasium "
    "API; the older one of `gym` with a single `done` is not."
)


class BadValueError(ValueError):
    """An env returned a value that breaks its contract; the group adds which env and when."""


@dataclass(frozen=True)
class Place:
    """Which env, and when: episodes and steps are counted from 1, step 0 is the reset.

    Args:
        env_id: id as configured.
        env_index: number of the env in the whole run.
        seed: what its first reset was seeded with.
        episode: number of the episode within this env.
        step: number of the step within the episode.
        env_steps: number of the step within the life of this env.
    """

    env_id: str
    env_index: int
    seed: int
    episode: int
    step: int
    env_steps: int

    def __str__(self) -> str:
        when = f"step {self.step}" if self.step else "reset"
        return (
            f"environment {self.env_id!r}, {which_env(self.env_index)} (seed {self.seed}), episode {self.episode}, "
            f"{when} (step {self.env_steps} of this env)"
        )


def which_env(env_index: int) -> str:
    """Return an env's number in words; those of evaluation are counted by themselves."""
    if env_index >= FIRST_EVAL_ENV_INDEX:
        return f"evaluation env {env_index - FIRST_EVAL_ENV_INDEX}"
    return f"env index {env_index}"


def as_reward(value: Any) -> float:
    """Return a reward as a float; ints, bools, numpy scalars and arrays of size 1 count as the same number.

    Raises:
        BadValueError: not a real number, or not finite in float32.
    """
    try:
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.item()
        number = float(value) if not isinstance(value, str | bytes) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not -LARGEST_REWARD <= number <= LARGEST_REWARD:
        raise BadValueError(
            f"the reward is {_shown(value)}. Accepted: one finite number (int, float, bool, numpy scalar or an array "
            "of size 1). Correct what the environment's step() returns."
        )
    return number


def as_flag(value: Any, name: str) -> bool:
    """Return `terminated` or `truncated` as a bool; numpy bools, 0 and 1 are accepted.

    Raises:
        BadValueError: anything else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool | int | np.integer | np.bool_) and value in (0, 1):
        return bool(value)
    raise BadValueError(
        f"`{name}` is {_shown(value)}. Accepted: a bool or numpy bool. Correct what the environment's step() returns."
    )


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.120}"
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__} too large to print"
