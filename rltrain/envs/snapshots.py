"""The state of envs as plain data: captured by walking their attributes, restored into envs that were built alike.

Nothing in a snapshot is code or names code, so loading one cannot execute anything. Captured are numbers, strings,
arrays, random generators, containers of these, MuJoCo data, and plain Python objects that hold these. Spaces,
functions, classes and other definitions are skipped. Whatever else an env holds (handles of a physics engine, files,
generators) makes its state uncapturable, and `take` answers None.
"""

from __future__ import annotations

import json
import logging
import struct
from typing import Any

import numpy as np

from rltrain.envs.state_tree import Reader, UncapturableError, Writer
from rltrain.errors import CheckpointError

log = logging.getLogger(__name__)

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"rlenvs01"
SLACK = 1.25
"""Room for growth between the size measured at boot and a later snapshot (lists that fill, longer numbers)."""


class SnapshotSlot:
    """Takes and restores the state of a fixed set of objects.

    Args:
        roots: envs and other plain objects; what they share is captured once.
    """

    def __init__(self, roots: list[Any]):
        self._roots = roots
        self._limit_bytes: int | None = None
        self._objects: set[tuple[str, str]] = set()

    def measure(self) -> int:
        """Return an upper bound for the size of a snapshot in bytes, 0 when the state cannot be captured."""
        if self._limit_bytes is None:
            try:
                payload, self._objects = encode(self._roots)
                self._limit_bytes = int(len(payload) * SLACK) + 1024
            except UncapturableError as reason:
                log.info("env states are not part of checkpoints: %s", reason)
                self._limit_bytes = 0
        return self._limit_bytes

    def take(self) -> bytes | None:
        """Return the state, or None when it cannot be captured or has outgrown the bound."""
        limit_bytes = self.measure()
        if limit_bytes == 0:
            return None
        try:
            payload, objects = encode(self._roots)
            if objects != self._objects:
                path, kind = min(objects ^ self._objects)
                raise UncapturableError(f"{path}, a {kind}, was made or dropped since the first reset")
        except UncapturableError as reason:
            log.warning("env states are left out of this checkpoint: %s", reason)
            return None
        if len(payload) > limit_bytes:
            log.warning(
                "env states are left out of this checkpoint: they have grown to %d bytes, beyond the %d bytes that "
                "were reserved when the run started", len(payload), limit_bytes,
            )  # fmt: skip
            return None
        return payload

    def put(self, payload: bytes) -> None:
        """Write a state into the objects.

        Raises:
            CheckpointError: the payload is damaged, or does not fit these objects.
        """
        decode(payload, self._roots)


def encode(roots: list[Any]) -> tuple[bytes, set[tuple[str, str]]]:
    """Return the state of objects as bytes (a JSON tree, then the arrays it refers to), and `Writer.objects`.

    Raises:
        UncapturableError: they hold something that is not data; names the attribute.
    """
    writer = Writer()
    tree = [writer.encode(root, f"{type(root).__name__}[{i}]") for i, root in enumerate(roots)]
    writer.check_no_overlap()
    arrays = [{"dtype": a.dtype.str, "shape": a.shape} for a in writer.arrays]
    text = json.dumps({"tree": tree, "arrays": arrays}, separators=(",", ":")).encode()
    payload = b"".join((_HEADER.pack(_MAGIC, len(text)), text, *(a.tobytes() for a in writer.arrays)))
    return payload, writer.objects


def decode(payload: bytes, roots: list[Any]) -> None:
    """Write a state into objects that were built like those it was taken from.

    Raises:
        CheckpointError: as `SnapshotSlot.put`.
    """
    try:
        magic, length = _HEADER.unpack_from(payload)
        if magic != _MAGIC:
            raise ValueError("it does not begin as an env snapshot")
        header = json.loads(payload[_HEADER.size : _HEADER.size + length])
        at = _HEADER.size + length
        arrays = []
        for entry in header["arrays"]:
            dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
            size = int(np.prod(shape))
            arrays.append(np.frombuffer(payload, dtype, size, at).reshape(shape).copy())
            at += size * dtype.itemsize
        reader = Reader(arrays)
        for root, node in zip(roots, header["tree"], strict=True):
            reader.write_into(root, node, type(root).__name__)
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise CheckpointError(
            f"The saved state of the environments cannot be restored: {error}. It must come from the same environment "
            "and options. Resume with the configuration of the run folder."
        ) from error
