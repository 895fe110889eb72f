"""Spaces to slab and back: pure functions of the spaces.

Observations keep their dtype and values; nested spaces become one array per leaf. Actions are stored as
`fields.ActionSpec` says and turned into what the env's `action_space.contains` accepts here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from gymnasium import spaces

from rltrain.errors import ConfigError, TrainingError
from rltrain.fields import OBS, ActionSpec, LeafSpec

Path = tuple[str | int, ...]


def describe_obs(space: spaces.Space) -> tuple[LeafSpec, ...]:
    """Describe each leaf of an observation space, Dict entries in the space's own order.

    Raises:
        ConfigError: a leaf is of an unsupported kind, or two leaves would get the same name.
    """
    leaves = tuple(_describe_leaf(path, leaf) for path, leaf in walk_leaves(space))
    names = [leaf.name for leaf in leaves]
    if not names or len(set(names)) != len(names):
        raise ConfigError(
            f"env.id: the observation space {space} has no leaves, or two whose names collide ({', '.join(names)}). "
            "Accepted: at least one leaf, and Dict keys that stay different when joined by dots. Rename the keys."
        )
    return leaves


def describe_action(space: spaces.Space) -> ActionSpec:
    """Describe an action space.

    Raises:
        ConfigError: the space is Dict, Tuple or another unsupported kind; the message shows the space.
    """
    if isinstance(space, spaces.Discrete):
        return ActionSpec("discrete", (), space.dtype.name, nvec=(int(space.n),), start=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = _ints(space.nvec), _ints(space.start)
        return ActionSpec("multi_discrete", space.shape, space.dtype.name, nvec=nvec, start=start)
    if isinstance(space, spaces.MultiBinary):
        num = prod(space.shape)
        return ActionSpec("multi_binary", space.shape, space.dtype.name, nvec=(2,) * num, start=(0,) * num)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiu" and prod(space.shape) > 0:
        low, high = (tuple(float(v) for v in bound.ravel()) for bound in (space.low, space.high))
        return ActionSpec("box", space.shape, space.dtype.name, low=low, high=high)
    raise ConfigError(
        f"env.id: the action space {space} is not supported. Accepted: Discrete, MultiDiscrete, MultiBinary and a "
        "non-empty Box of floats or integers. Flatten it in a wrapper of your own and give that as `module:factory`."
    )


def flatten_obs(space: spaces.Space, obs: Any) -> list[np.ndarray]:
    """Return the leaves of one observation (or of a batch of them) in `describe_obs` order.

    Arrays are not copied: the caller copies them into the slab before the env runs again.
    """
    return [np.asarray(pick(obs, path)) for path, _ in walk_leaves(space)]


def walk_leaves(space: spaces.Space, path: Path = ()) -> Iterator[tuple[Path, spaces.Space]]:
    """Yield the way to each leaf (Dict keys, Tuple positions) and its space."""
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from walk_leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from walk_leaves(child, (*path, index))
    else:
        yield path, space


def pick(obs: Any, path: Path) -> Any:
    """Follow `path` into a nested observation."""
    for key in path:
        obs = obs[key]
    return obs


def to_env_action(spec: ActionSpec, stored: np.ndarray) -> np.ndarray:
    """Turn stored actions into the env's own.

    Args:
        spec: the action space.
        stored: [n, *spec.stored_shape], as a distribution gave them.

    Returns:
        [n, *spec.shape] in the env's dtype, never a view of `stored`: start added; Box components with two finite
        bounds scaled from [-1, 1]; all clipped to the bounds; integers rounded to the nearest (ties to even).

    Raises:
        TrainingError: a Box action is NaN or infinite.
    """
    return action_converter(spec)(stored)


@lru_cache(maxsize=64)
def action_converter(spec: ActionSpec) -> Callable[[np.ndarray], np.ndarray]:
    """Return `to_env_action` for one spec, with its constants worked out once."""
    dtype = np.dtype(spec.dtype)
    if spec.kind == "box":
        return _box_converter(spec, dtype)
    start = np.array(spec.start, np.int64).reshape(spec.shape)
    if not start.any():
        return lambda stored: stored.astype(dtype).reshape(len(stored), *spec.shape)
    return lambda stored: (stored.reshape(len(stored), *spec.shape) + start).astype(dtype)


def _box_converter(spec: ActionSpec, dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    low, high = np.array(spec.low), np.array(spec.high)
    scaled = np.isfinite(low) & np.isfinite(high)
    center, half_width = np.zeros_like(low), np.ones_like(low)
    center[scaled] = low[scaled] / 2 + high[scaled] / 2
    half_width[scaled] = high[scaled] / 2 - low[scaled] / 2
    is_integer = dtype.kind in "iu"
    if is_integer:
        # float64 cannot hold the ends of 64-bit types: step inwards where rounding would leave the type.
        ends = np.iinfo(dtype)
        low = np.maximum(low, float(ends.min))
        high = np.minimum(high, np.nextafter(float(ends.max), 0.0) if float(ends.max) > ends.max else float(ends.max))

    def convert(stored: np.ndarray) -> np.ndarray:
        action = stored.astype(np.float64)
        if not np.isfinite(action).all():
            row = int(np.argmin(np.isfinite(action).all(axis=1)))
            raise TrainingError(
                f"The policy chose the action {stored[row].tolist()} for row {row}; it must be finite. The weights or "
                "the observation are not finite: look at learner/bad_updates and lower `algo.<name>.learning_rate`."
            )
        action *= half_width
        action += center
        if is_integer:
            np.rint(action, out=action)
        np.clip(action, low, high, out=action)
        return action.astype(dtype).reshape(len(stored), *spec.shape)

    return convert


def _describe_leaf(path: Path, space: spaces.Space) -> LeafSpec:
    name = ".".join((OBS, *(str(key) for key in path)))
    if isinstance(space, spaces.Discrete):
        return LeafSpec(name, "discrete", (), space.dtype.name, nvec=(int(space.n),), start=(int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        return LeafSpec(
            name, "multi_discrete", space.shape, space.dtype.name, nvec=_ints(space.nvec), start=_ints(space.start)
        )
    if isinstance(space, spaces.MultiBinary):
        return LeafSpec(name, "multi_binary", space.shape, space.dtype.name)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub":
        return LeafSpec(name, "box", space.shape, space.dtype.name)
    raise ConfigError(
        f"env.id: the observation {name!r} has the space {space}, which is not supported. Accepted: Box, Discrete, "
        "MultiDiscrete, MultiBinary, and Dict and Tuple of these. Convert it in a wrapper and give that as "
        "`module:factory`."
    )


def _ints(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(v) for v in np.asarray(values).ravel())
