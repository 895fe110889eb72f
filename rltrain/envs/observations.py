"""Writes observations of envs into slab rows, checked against the space they declared."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rltrain.envs.boundary import Path, describe_obs, pick, walk_leaves
from rltrain.envs.outside import UNSAFE_CAST, is_unsafe_cast
from rltrain.envs.values import BadValueError
from rltrain.fields import LeafSpec

log = logging.getLogger("rltrain.envs")


@dataclass(frozen=True)
class Leaf:
    """One leaf of the observation space: where it lies in an observation, and what it must be."""

    path: Path
    spec: LeafSpec
    dtype: np.dtype
    zeros: np.ndarray | None
    """A float leaf: one group's worth of zeros, flattened; None for the others."""
    bounds: tuple[np.ndarray, np.ndarray] | None
    """A leaf of counted values: smallest and largest value of each component; None for the others."""


class ObsRows:
    """Writes observations into `[N, ...]` rows, one dict entry for each leaf.

    Args:
        space: observation space of one env.
        num_envs: N.
        warns: whether to warn, once for each leaf, of a dtype whose values the declared one cannot all hold.
    """

    def __init__(self, space: spaces.Space, num_envs: int, warns: bool = False):
        self.specs = describe_obs(space)
        self.num_envs = num_envs
        self.leaves = [
            _leaf(path, spec, num_envs) for (path, _), spec in zip(walk_leaves(space), self.specs, strict=True)
        ]
        self._leaves_to_warn_of = {spec.name for spec in self.specs if warns and spec.kind == "box"}
        self.is_flat = len(self.leaves) == 1 and not self.leaves[0].path

    def buffers(self) -> dict[str, np.ndarray]:
        """Return zeroed rows of the group's own."""
        return {spec.name: np.zeros((self.num_envs, *spec.shape), spec.dtype) for spec in self.specs}

    def write_one(self, out: dict[str, np.ndarray], row: int, obs: Any) -> None:
        """Copy the observation of one env into its row.

        Raises:
            BadValueError: a leaf is missing, or its shape or dtype is not as declared.
        """
        for leaf in self.leaves:
            out[leaf.spec.name][row] = self._checked(leaf, obs, leaf.spec.shape)

    def write_all(self, out: dict[str, np.ndarray], obs: Any) -> None:
        """Copy the batched observation of a vector env.

        Raises:
            BadValueError: as `write_one`.
        """
        for leaf in self.leaves:
            out[leaf.spec.name][...] = self._checked(leaf, obs, (self.num_envs, *leaf.spec.shape))

    def first_bad_row(self, out: dict[str, np.ndarray]) -> tuple[int, str] | None:
        """Return the first row with a value that is not finite or not counted by its space, and what is wrong."""
        for leaf in self.leaves:
            rows = out[leaf.spec.name]
            if leaf.zeros is not None:
                if not all_finite(rows, leaf.zeros):
                    return _describe_not_finite(leaf, rows)
            elif leaf.bounds is not None:
                low, high = leaf.bounds
                outside = (rows < low) | (rows > high)
                if outside.any():
                    return _describe_outside(leaf, rows, outside)
        return None

    def _checked(self, leaf: Leaf, obs: Any, shape: tuple[int, ...]) -> np.ndarray:
        value = _pick(obs, leaf)
        array = _checked(leaf, value, shape)
        # Lists and plain numbers state no dtype.
        if array is value and leaf.spec.name in self._leaves_to_warn_of and is_unsafe_cast(array.dtype, leaf.dtype):
            self._leaves_to_warn_of.remove(leaf.spec.name)
            _warn_of_cast(leaf, array.dtype)
        return array


def all_finite(values: np.ndarray, zeros: np.ndarray) -> bool:
    """Whether all values are finite; NaN * 0 and inf * 0 are NaN, so one product of vectors tells.

    Args:
        values: floats of any shape.
        zeros: as many zeros of the same dtype, flat.
    """
    with np.errstate(invalid="ignore"):
        return bool(zeros.dot(values.ravel()) == 0)


def _leaf(path: Path, spec: LeafSpec, num_envs: int) -> Leaf:
    dtype = np.dtype(spec.dtype)
    zeros = np.zeros(num_envs * int(np.prod(spec.shape)), dtype) if dtype.kind == "f" else None
    bounds = None
    if spec.nvec:
        low = np.array(spec.start, np.int64).reshape(spec.shape)
        bounds = (low.astype(dtype), (low + np.array(spec.nvec, np.int64).reshape(spec.shape) - 1).astype(dtype))
    return Leaf(path, spec, dtype, zeros, bounds)


def _pick(obs: Any, leaf: Leaf) -> Any:
    try:
        return pick(obs, leaf.path)
    except (KeyError, IndexError, TypeError):
        raise BadValueError(
            f"the observation has no leaf {leaf.spec.name!r}, which the observation space declares; got "
            f"{_short(obs)}. Return every entry of the space from reset() and step()."
        ) from None


def _checked(leaf: Leaf, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty((), object)
    if array.shape != shape or not _can_store(array, leaf.dtype):
        raise BadValueError(
            f"the observation {leaf.spec.name!r} has shape {array.shape} and dtype {array.dtype}; its space declares "
            f"shape {shape} and dtype {leaf.dtype}. Return what the space declares, or correct `observation_space`."
        )
    return array


def _warn_of_cast(leaf: Leaf, got: np.dtype) -> None:
    log.warning(
        "The observation %r has dtype %s, but its space declares %s. Training casts it, which %s. Return what the "
        "space declares, or correct `observation_space`.", leaf.spec.name, got, leaf.dtype, UNSAFE_CAST,
    )  # fmt: skip


def _can_store(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether values keep their meaning in the declared dtype: same kind, or integers and bools into wider kinds."""
    if np.can_cast(array.dtype, dtype, "same_kind"):
        return True
    if array.dtype.kind in "iub" and dtype.kind in "iub":
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return array.size == 0 or (int(array.min()) >= limits[0] and int(array.max()) <= limits[1])
    return False


def _describe_not_finite(leaf: Leaf, rows: np.ndarray) -> tuple[int, str]:
    flat = rows.reshape(len(rows), -1)
    row, component = (int(i) for i in np.argwhere(~np.isfinite(flat))[0])
    return row, (
        f"the observation {leaf.spec.name!r} is {flat[row, component]} at component {component}. Accepted: finite "
        "numbers. Look for a division by zero or a diverging simulation in the environment."
    )


def _describe_outside(leaf: Leaf, rows: np.ndarray, outside: np.ndarray) -> tuple[int, str]:
    row = int(np.argwhere(outside)[0][0])
    return row, (
        f"the observation {leaf.spec.name!r} is {rows[row].tolist()}, outside its space: smallest "
        f"{list(leaf.spec.start)}, number of values {list(leaf.spec.nvec)}. Correct it or `observation_space`."
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}... ({type(value).__name__})"
