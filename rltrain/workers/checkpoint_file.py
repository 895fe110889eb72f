"""One checkpoint file: a zip archive of `torch.save` with a label at its end.

The label is the archive's comment: format number, running number of the save, score, and the SHA-256 of every byte
before it. The archive's own checksums are not checked by torch, so that a flipped bit would go unnoticed without it.

Written as a stream and read through a mapping: a checkpoint with a replay of many GB is never a second time in memory.

Owns: the layout of one file. Written by: the learner, through `checkpoints.py`. Read by: the same, and evaluation.
Blocks on: the disk. Unblocked by: nothing; it says that it is alive after every 16 MiB.
If the process dies: the file is cut short, and its label missing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from rltrain.errors import CheckpointError

FORMAT = 2
_COMMENT = "rltrain checkpoint format=%06d save=%012d score=%+.16e sha256="
_DIGEST_BYTES = 64
_COMMENT_BYTES = len(_COMMENT % (0, 0, 0.0)) + _DIGEST_BYTES + 1  # one spare: an exponent may have three digits
_SCORE = rb"[-+](?:\d\.\d{16}e[-+]\d{2,3}|inf|nan)"
_PATTERN = re.compile(rb"rltrain checkpoint format=(\d+) save=(\d+) score=(" + _SCORE + rb") +sha256=([0-9a-f]{64})")
_END_BYTES, _END_MARK = 22, b"PK\x05\x06"
"""The zip archive's last record, without a comment: its last two bytes are the comment's length."""
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class Label:
    """What the comment at a file's end says."""

    format: int
    save: int
    score: float | None
    sha256: str


def write(file: BinaryIO, state: dict[str, Any], save: int, score: float | None, beat: Callable[[], None]) -> Label:
    """Write a state and its label.

    Args:
        file: open for writing, empty.
        state: of the CPU.
        save: running number of the save.
        score: higher is better; None when there is none.
        beat: called after every 16 MiB.

    Raises:
        OSError: the disk's answer.
    """
    stream = _Stream(file, beat)
    torch.save(state, cast(BinaryIO, stream))
    if stream.error is not None:
        raise stream.error
    end = stream.end
    if not end.startswith(_END_MARK):
        raise CheckpointError("torch.save wrote no zip archive; install the torch version of the constraints file.")
    head = (_COMMENT % (FORMAT, save, math.nan if score is None else score)).removesuffix("sha256=")
    head = head.ljust(_COMMENT_BYTES - _DIGEST_BYTES - len("sha256=")) + "sha256="
    stream.put(memoryview(end[:-2] + _COMMENT_BYTES.to_bytes(2, "little") + head.encode()))
    digest = stream.hash.hexdigest()
    file.write(digest.encode())
    return Label(FORMAT, save, score, digest)


def read_label(path: Path) -> Label | None:
    """Return a file's label; None where it is damaged or there is none.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _COMMENT_BYTES))
        found = _PATTERN.fullmatch(file.read())
    if found is None:
        return None
    score = float(found[3])
    return Label(int(found[1]), int(found[2]), None if math.isnan(score) else score, found[4].decode())


def is_whole(path: Path, label: Label) -> bool:
    """Whether a file's content is what its label says.

    Raises:
        OSError: it cannot be read.
    """
    digest, left = hashlib.sha256(), path.stat().st_size - _DIGEST_BYTES
    with open(path, "rb") as file:
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return left == 0 and digest.hexdigest() == label.sha256


def read(path: Path) -> Any:
    """Return what was saved, its tensors private to this process and read from the disk when they are used.

    Raises:
        Exception: whatever torch meets in bytes made by somebody else.
    """
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


class _Stream:
    """What `torch.save` writes to: hashes it, hands it on in pieces, and holds the archive's last record back."""

    def __init__(self, file: BinaryIO, beat: Callable[[], None]):
        self.hash = hashlib.sha256()
        self.error: OSError | None = None
        """The first error of the disk; nothing is written after it. Kept from torch, which makes another one of it."""
        self.end = b""
        """What is held back."""
        self._file, self._beat = file, beat

    def write(self, content: Any) -> int:
        """Take the next bytes."""
        view = memoryview(content).cast("B")
        num_bytes = view.nbytes
        if self.error is None:
            try:
                if view.nbytes < _END_BYTES:
                    view = memoryview(self.end + view)
                else:
                    self.put(memoryview(self.end))
                self.put(view[:-_END_BYTES])
                self.end = bytes(view[-_END_BYTES:])
            except OSError as error:
                self.error = error
        return num_bytes

    def put(self, view: memoryview) -> None:
        """Hash and write."""
        for start in range(0, view.nbytes, _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            self.hash.update(piece)
            self._file.write(piece)
            if piece.nbytes == _PIECE_BYTES:
                self._beat()

    def flush(self) -> None:
        """Nothing: the file is flushed when it is whole."""
