"""Python objects to a JSON-able tree of data with arrays beside it, and back into live objects."""

from __future__ import annotations

import enum
import random
import types
from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from rltrain.envs import mujoco_state

SCALARS = (bool, int, float, str, type(None))
DEFINITIONS = (
    spaces.Space, Registration, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
    types.MethodType, types.MethodWrapperType, enum.Enum, np.dtype, np.ufunc,
)  # fmt: skip
"""What is defined once and not changed by stepping: left as the freshly built env has it."""
IMMUTABLE: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
"""Containers that are built from their items at once (a set's items are values, so it cannot hold itself)."""
MAX_DEPTH = 60


class UncapturableError(Exception):
    """An object holds something that is not data."""


class Writer:
    """Turns objects into a tree; arrays are collected in `arrays`, things met again become references."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.objects: set[tuple[str, str]] = set()
        """Path and type of each plain object: a snapshot only fits envs that have the same ones."""
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        self._array_paths: list[str] = []

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """Return the node of `value`.

        Raises:
            UncapturableError: it is not data; names `path`.
        """
        if type(value) in SCALARS:
            return value
        if isinstance(value, DEFINITIONS):
            return {"k": "skip"}
        if depth > MAX_DEPTH:
            raise UncapturableError(f"{path} is nested more than {MAX_DEPTH} deep")
        if id(value) in self._seen:
            return {"k": "ref", "to": self._seen[id(value)]}
        number = self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # an id is only unique while its object lives
        return {"n": number, **self._encode_new(value, path, depth + 1)}

    def check_no_overlap(self) -> None:
        """Refuse arrays that share memory: copies of them would no longer change together.

        Raises:
            UncapturableError: two arrays overlap.
        """
        named = zip(self.arrays, self._array_paths, strict=True)
        spans = sorted((*np.lib.array_utils.byte_bounds(array), path) for array, path in named if array.size)
        for (_, end, first), (start, _, second) in pairwise(spans):
            if start < end:
                raise UncapturableError(f"{first} and {second} share memory")

    def _encode_new(self, value: Any, path: str, depth: int) -> dict:
        if isinstance(value, np.ndarray | np.generic):
            return self._encode_array(value, path)
        if isinstance(value, np.random.Generator):
            return {"k": "generator", "v": self.encode(value.bit_generator.state, path, depth)}
        if isinstance(value, np.random.RandomState):
            return {"k": "random_state", "v": self.encode(value.get_state(legacy=False), path, depth)}
        if type(value) is random.Random:
            return {"k": "random", "v": self.encode(value.getstate(), path, depth)}
        if type(value) in (list, tuple, set, frozenset, deque):
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            nodes = [self.encode(item, f"{path}[{i}]", depth) for i, item in enumerate(items)]
            extra = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
            return {"k": type(value).__name__, "v": nodes, **extra}
        if type(value) is dict:
            pairs = [(self.encode(k, path, depth), self.encode(v, f"{path}[{k!r}]", depth)) for k, v in value.items()]
            return {"k": "dict", "v": pairs}
        if mujoco_state.is_model(value):
            return {"k": "skip"}
        if mujoco_state.is_data(value):
            return {"k": "mujoco", "v": self.encode(mujoco_state.capture(value.model, value), path, depth)}
        if not is_plain_object(value):
            module = getattr(type(value), "__module__", "a C library")  # types made by SWIG may have none
            raise UncapturableError(f"{path} is a {type(value).__name__} of {module}")
        self.objects.add((path, type(value).__qualname__))
        fields = {name: self.encode(v, f"{path}.{name}", depth) for name, v in vars(value).items()}
        return {"k": "object", "type": type(value).__qualname__, "v": fields}

    def _encode_array(self, value: np.ndarray | np.generic, path: str) -> dict:
        if value.dtype.kind not in "biufcSU" or (isinstance(value, np.ndarray) and type(value) is not np.ndarray):
            raise UncapturableError(f"{path} is an array of {value.dtype}")
        is_scalar = isinstance(value, np.generic)
        self.arrays.append(np.asarray(value))
        self._array_paths.append(path)
        return {"k": "scalar" if is_scalar else "array", "v": len(self.arrays) - 1}


class Reader:
    """Writes a tree into live objects of the same structure.

    Args:
        arrays: the arrays beside the tree, owned by the caller's envs from now on.
    """

    def __init__(self, arrays: list[np.ndarray]):
        self._arrays = arrays
        self._made: dict[int, Any] = {}

    def write_into(self, target: Any, node: dict, path: str) -> None:
        """Write the fields of an object node into `target`.

        Raises:
            ValueError: the object is of another type than the saved one; names `path`.
        """
        if node["k"] != "object" or node["type"] != type(target).__qualname__:
            raise ValueError(f"{path} is a {type(target).__qualname__}, saved was {node.get('type', node['k'])!r}")
        self._made[node["n"]] = target
        fields = vars(target)
        for name, child in node["v"].items():
            value = self._decode(child, fields.get(name), f"{path}.{name}")
            if not _is_skip(child):
                fields[name] = value

    def _decode(self, node: Any, current: Any, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        kind = node["k"]
        if kind == "skip":
            if "n" in node:
                self._made[node["n"]] = current
            return current
        if kind == "ref":
            return self._made[node["to"]]
        if kind == "object":
            self.write_into(current, node, path)
            return current
        if kind in ("list", "deque"):
            made: Any = [] if kind == "list" else deque(maxlen=node["maxlen"])
            self._made[node["n"]] = made
            made.extend(self._decode_items(node["v"], current, path))
            return made
        if kind == "dict":
            made = self._made[node["n"]] = {}
            before = current if isinstance(current, dict) else {}
            for key_node, child in node["v"]:
                key = self._decode(key_node, None, path)
                made[key] = self._decode(child, before.get(key), f"{path}[{key!r}]")
            return made
        made = self._made[node["n"]] = self._decode_leaf(kind, node["v"], current, path)
        return made

    def _decode_leaf(self, kind: str, content: Any, current: Any, path: str) -> Any:
        if kind == "array":
            return self._arrays[content]
        if kind == "scalar":
            return self._arrays[content][()]
        if kind in IMMUTABLE:
            return IMMUTABLE[kind](self._decode_items(content, current, path))
        state = self._decode(content, None, path)
        if kind == "generator":
            return _generator(state, current)
        if kind == "random_state":
            current = current if isinstance(current, np.random.RandomState) else np.random.RandomState()
            current.set_state(state)
            return current
        if kind == "random":
            current = current if isinstance(current, random.Random) else random.Random()
            current.setstate(state)
            return current
        if kind == "mujoco":
            mujoco_state.restore(current.model, current, state)
            return current
        raise ValueError(f"{path} is of the unknown kind {kind!r}")

    def _decode_items(self, nodes: list, current: Any, path: str) -> list:
        before = list(current) if isinstance(current, list | tuple | deque) else []
        before += [None] * (len(nodes) - len(before))
        return [
            self._decode(node, old, f"{path}[{i}]")
            for i, (node, old) in enumerate(zip(nodes, before, strict=False))
        ]  # fmt: skip


def is_plain_object(value: Any) -> bool:
    """Whether all state of an object is in its `__dict__`: a Python class without slots or a built-in base."""
    if not hasattr(value, "__dict__"):
        return False
    for cls in type(value).__mro__[:-1]:
        if not cls.__flags__ & (1 << 9) or cls.__dict__.get("__slots__"):  # 1 << 9: a class made by Python code
            return False
    return type(value).__basicsize__ <= _PLAIN.__basicsize__ and not isinstance(value, BaseException)


class _PLAIN:
    """Stands for an object of a class without anything special, to compare sizes with."""


def _is_skip(node: Any) -> bool:
    return isinstance(node, dict) and node["k"] == "skip"


def _generator(state: dict, current: Any) -> np.random.Generator:
    name = state["bit_generator"]
    if not isinstance(current, np.random.Generator) or current.bit_generator.state["bit_generator"] != name:
        if name not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
            raise ValueError(f"the random generator {name!r} is not one of numpy's")
        current = np.random.Generator(getattr(np.random, name)())
    current.bit_generator.state = state
    return current
