"""Names, shapes and dtypes of everything in a fragment, a request and a reply: the contract all processes share.

Torch-free and JSON-able: the supervisor gets an `EnvSpec` from the first actor that booted, derives the
`FragmentSchema`, and hands both to every process.

Axis letters: T steps, N envs per group, B rows, A actions. A slab array is `[slot, T+1, N, ...]`, time-major.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np

OBS = "obs"
ACTION = "action"
NEXT = "next_"
"""Before the name of an observation leaf in a batch of transitions: of the observation that is bootstrapped from."""


@dataclass(frozen=True)
class LeafSpec:
    """One leaf of a (nested) observation space.

    Args:
        name: field name, `obs` for a plain space, `obs.a.0` for entry 0 of the tuple under key `a`.
        kind: `box`, `discrete`, `multi_discrete` or `multi_binary`.
        shape: shape of one observation; `()` for a discrete one.
        dtype: numpy dtype name as stored in the slab (the space's own).
        nvec: number of values of each component (discrete and multi_discrete), flattened.
        start: smallest value of each component, flattened; observations are stored as they come, start included.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether a convolutional encoder fits: uint8 with two to four axes."""
        return self.kind == "box" and self.dtype == "uint8" and 2 <= len(self.shape) <= 4


@dataclass(frozen=True)
class ActionSpec:
    """An action space, and how its actions are stored.

    Stored (in fragments, and by distributions), always flattened: discrete int64 `()` counted from 0;
    multi_discrete int64 `(A,)` counted from 0; multi_binary int64 `(A,)`; box float32 `(A,)` in policy units.
    Policy units of a component with two finite bounds: -1 is `low`, +1 is `high`; of any other: the env's own.

    Args:
        kind: `discrete`, `multi_discrete`, `multi_binary` or `box`.
        shape: the env's action shape.
        dtype: the env's action dtype.
        nvec: number of values of each component, flattened (discrete: one entry; multi_binary: twos).
        start: smallest value of each component, flattened (discrete kinds).
        low: lower bounds, flattened (box); may be -inf.
        high: upper bounds, flattened (box); may be inf.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def num_components(self) -> int:
        """Number of scalar components A; 1 for discrete."""
        return prod(self.shape) if self.shape else 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one stored action."""
        return () if self.kind == "discrete" else (self.num_components,)

    @property
    def stored_dtype(self) -> str:
        """Numpy dtype name of a stored action."""
        return "float32" if self.kind == "box" else "int64"


@dataclass(frozen=True)
class EnvSpec:
    """What an actor found out about its environments while building them.

    Args:
        env_id: id or `module:factory` as configured.
        obs: observation leaves in a fixed order (Dict keys as the space orders them).
        action: the action space.
        is_native: whether the env's own vector implementation is stepped.
        max_episode_steps: the time limit in force in env steps, or None.
        snapshot_bytes: size of one group's state snapshot; 0 when the env's state cannot be captured.
    """

    env_id: str
    obs: tuple[LeafSpec, ...]
    action: ActionSpec
    is_native: bool = False
    max_episode_steps: int | None = None
    snapshot_bytes: int = 0

    def has_same_spaces(self, other: EnvSpec) -> bool:
        """Return whether a policy for one fits the other."""
        return (self.obs, self.action) == (other.obs, other.action)

    def to_dict(self) -> dict:
        """Return a JSON-able copy."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> EnvSpec:
        """Rebuild from `to_dict` output, JSON lists turned back into tuples."""
        leaves = tuple(LeafSpec(**{k: _tuple(v) for k, v in leaf.items()}) for leaf in data["obs"])
        action = ActionSpec(**{k: _tuple(v) for k, v in data["action"].items()})
        return cls(**{**data, "obs": leaves, "action": action})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Field:
    """One array of a fragment: `[T+1, N, *shape]`, or `[T+1]` when it is shared by the group."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    per_env: bool = True

    def row_bytes(self, num_envs: int) -> int:
        """Bytes of one time step of one group."""
        items = prod(self.shape) * (num_envs if self.per_env else 1)
        return items * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class FragmentSchema:
    """Everything in a fragment of T steps of N envs.

    Row t holds the observation, the action chosen on it, and what the env returned for that action.
    Row T holds only the observation after the last step. A row with `valid` False is the step after an
    episode's end, on which a NEXT_STEP env resets: its action was ignored; it is not learned from or counted.
    `episode_return` (raw rewards) and `episode_length` are written only where an episode ended.
    """

    fragment_length: int
    num_envs: int
    fields: tuple[Field, ...]

    @classmethod
    def for_env(cls, spec: EnvSpec, fragment_length: int, num_envs: int) -> FragmentSchema:
        """Build the on-policy schema of an environment."""
        fields = [Field(leaf.name, leaf.shape, leaf.dtype) for leaf in spec.obs]
        fields += [
            Field(ACTION, spec.action.stored_shape, spec.action.stored_dtype),
            Field("behaviour_logp", (), "float32"),
            Field("reward", (), "float32"),
            Field("terminated", (), "bool"),
            Field("truncated", (), "bool"),
            Field("valid", (), "bool"),
            Field("episode_return", (), "float64"),
            Field("episode_length", (), "int64"),
            Field("policy_version", (), "int64", per_env=False),
        ]
        return cls(fragment_length, num_envs, tuple(fields))

    def array_shape(self, field: Field) -> tuple[int, ...]:
        """Shape of a field within one slot."""
        rows = (self.fragment_length + 1,)
        return (*rows, self.num_envs, *field.shape) if field.per_env else (*rows, *field.shape)

    def slot_bytes(self) -> int:
        """Bytes of one fragment."""
        return sum((self.fragment_length + 1) * f.row_bytes(self.num_envs) for f in self.fields)

    def to_dict(self) -> dict:
        """Return a JSON-able copy."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> FragmentSchema:
        """Rebuild from `to_dict` output."""
        fields = tuple(Field(f["name"], tuple(f["shape"]), f["dtype"], f["per_env"]) for f in data["fields"])
        return cls(data["fragment_length"], data["num_envs"], fields)
