"""Says in which leaf, and by what, an observation breaks its space, and what training makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rltrain.envs.boundary import pick, walk_leaves
from rltrain.fields import OBS

UNSAFE_CAST = "rounds or wraps values that the declared dtype cannot hold"


def is_unsafe_cast(got: np.dtype, declared: np.dtype) -> bool:
    """Whether storing in the declared dtype can change values, as float64 in float32 does."""
    return not np.can_cast(got, declared)


def outside_leaves(space: spaces.Space, obs: Any) -> dict[str, str]:
    """Return what is wrong with each leaf of an observation that its space does not contain: name -> reason."""
    found: dict[str, str] = {}
    for path, leaf in walk_leaves(space):
        name = ".".join((OBS, *(str(key) for key in path)))
        try:
            value = pick(obs, path)
        except (KeyError, IndexError, TypeError):
            found[name] = f"{name} is missing from the observation {obs!r:.120}. Training stops there."
            continue
        reason = None if leaf.contains(value) else _reason(name, leaf, value)
        if reason is not None:
            found[name] = reason
    if not found and not space.contains(obs):
        found[OBS] = f"the observation {obs!r:.120} has not the entries of {space!r:.120}; others are left out."
    return found


def _reason(name: str, space: spaces.Space, value: Any) -> str | None:
    try:
        array = np.asarray(value)
    except ValueError:
        return f"{name} is {value!r:.120}, which is no array. Training stops there."
    declared = np.dtype(space.dtype)
    if array.shape != (space.shape or ()):
        return f"{name} has shape {array.shape}; its space declares shape {space.shape}. Training stops there."
    reasons = []
    if isinstance(space, spaces.Box):
        if is_unsafe_cast(array.dtype, declared):
            reasons.append(
                f"has dtype {array.dtype}; its space declares {declared}: {_fate_of_dtype(array.dtype, declared)}"
            )
        if array.dtype.kind in "fiub":
            reasons += _out_of_range(array, space)
    elif isinstance(value, np.ndarray) or np.isscalar(value):
        reasons.append(f"is {array.tolist()} of dtype {array.dtype}, outside {space}: training stops there")
    return f"{name} {'; it '.join(reasons)}." if reasons else None


def _fate_of_dtype(got: np.dtype, declared: np.dtype) -> str:
    if np.can_cast(got, declared, "same_kind") or (got.kind in "iub" and declared.kind in "iub"):
        return f"training casts {got} to {declared}, with one warning: that {UNSAFE_CAST}"
    return "training stops there"


def _out_of_range(array: np.ndarray, space: spaces.Box) -> list[str]:
    flat, low, high = array.ravel(), space.low.ravel(), space.high.ravel()
    bad = np.flatnonzero(~((flat >= low) & (flat <= high)))
    if not len(bad):
        return []
    i = int(bad[0])
    fate = "training takes it as it is and does not say so" if np.isfinite(flat[i]) else "training stops there"
    more = f" ({len(bad)} of {flat.size} components are outside)" if len(bad) > 1 else ""
    return [f"is {flat[i]} at component {i}, where its space declares {low[i]} to {high[i]}{more}: {fate}"]
