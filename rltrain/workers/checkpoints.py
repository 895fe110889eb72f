"""Checkpoints on disk: written whole or not at all, checked when read, old ones removed.

Owns: the folder `checkpoints` of a run.
Written by: the learner, which has the run's lock through its parent.
Read by: the learner at resume, and evaluation.
Blocks on: the disk. Unblocked by: nothing.
If the process dies: the folder holds the checkpoints it held before, plus perhaps a temporary file, which the next
store removes.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from rltrain.errors import CheckpointError, TrainingError
from rltrain.workers import checkpoint_file
from rltrain.workers.checkpoint_content import validate
from rltrain.workers.checkpoint_file import Label

_NAME = re.compile(r"checkpoint-\d{12,}\.pt")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: created when missing; temporary files of an interrupted save are removed.
        keep: newest checkpoints kept, >= 1.
        keep_best: also keep the one with the highest score (the newer of equals).

    Raises:
        CheckpointError: the folder cannot be made or read.

    Concurrency: one store per folder at a time.
    """

    def __init__(self, folder: Path, keep: int, keep_best: bool):
        self.folder, self.keep, self.keep_best = Path(folder), keep, keep_best
        try:
            self.folder.mkdir(exist_ok=True)
            for leftover in self.folder.glob(".checkpoint-*.tmp"):
                leftover.unlink()
            self._labels = {path: label for path, label in _labelled(self.folder) if label is not None}
        except OSError as error:
            raise _failure("opening the checkpoint folder", self.folder, error) from error

    def save(
        self, state: dict[str, Any], env_steps: int, score: float | None, beat: Callable[[], None] = lambda: None
    ) -> Path:
        """Write a checkpoint, then remove those no longer kept.

        When this returns, the checkpoint survives a power cut. A kill or an error at any moment leaves every earlier
        checkpoint as it was, but for one of the same `env_steps`, which is replaced in one step.

        Args:
            state: tensors, numbers, text, and dicts and lists of them. Tensors are written as of the CPU. What
                `state["model"]`, `state["train_state"]` and `state["training"]["algorithm"]` hold must be finite.
            env_steps: env steps learned from so far, >= 0; part of the file's name.
            score: higher is better; None when there is none yet.
            beat: called again and again while a large one is written.

        Returns:
            The file's path.

        Raises:
            TrainingError: a number of the model, the optimiser or the statistics is not finite; nothing is written.
            CheckpointError: it could not be written; training can go on, and the next save may succeed.
        """
        state = _on_cpu(state)
        for part in ("model", "train_state"):
            _check_finite(state.get(part), part)
        _check_finite(state.get("training", {}).get("algorithm"), "training.algorithm")
        save = 1 + max((label.save for label in self._labels.values()), default=0)
        path = self.folder / f"checkpoint-{env_steps:012d}.pt"
        temporary = self.folder / f".{path.name}.tmp"
        try:
            self.folder.mkdir(exist_ok=True)  # somebody may have removed it
            label = _write_durably(temporary, path, lambda file: checkpoint_file.write(file, state, save, score, beat))
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _failure("writing a checkpoint", path, error, needed_bytes=_num_bytes(state)) from error
        self._labels[path] = label
        self._remove_old(path)
        return path

    def latest(self) -> Path | None:
        """Return the newest checkpoint whose label is intact, or None."""
        return max(self._labels, key=lambda path: self._labels[path].save, default=None)

    def best(self) -> Path | None:
        """Return the checkpoint with the highest score, or None when none has a score."""
        scored = [(label.score, label.save, path) for path, label in self._labels.items() if label.score is not None]
        return max(scored)[2] if scored else None

    def missing_room(self, checkpoint_bytes: int, num_saves: float) -> str | None:
        """Say that the checkpoints to come will not fit beside those that are there; None where they will.

        Args:
            checkpoint_bytes: about the size of one.
            num_saves: how many are going to be written; may be infinite.
        """
        most = self.keep + self.keep_best + 1  # an old one goes only when the new one is safe
        num_more = int(max(min(most, len(self._labels) + num_saves) - len(self._labels), 1))
        needed, free = num_more * checkpoint_bytes, _free_bytes(self.folder)
        if needed <= free:
            return None
        return (
            f"checkpoints will not fit: {num_more} more of about {checkpoint_bytes:,} bytes come into {self.folder} "
            f"({needed:,} bytes needed, {free:,} bytes free). Free some space, or lower checkpoint.keep."
        )

    @staticmethod
    def load(path: Path) -> tuple[dict[str, Any], list[str], Path]:
        """Read a checkpoint onto the CPU.

        Args:
            path: a checkpoint file; or a run folder or its `checkpoints`, of which the newest good one is taken.

        Returns:
            The saved state, as `checkpoint_content.SCHEMA` describes it; a warning for each damaged checkpoint that
            was passed over; and the file that was read.

        Raises:
            CheckpointError: there is none, or none is good.
        """
        path = Path(path)
        if not path.is_dir():
            return _read(path), [], path
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        warnings: list[str] = []
        for candidate in _newest_first(folder):
            try:
                return _read(candidate), warnings, candidate
            except CheckpointError as error:
                warnings.append(f"{error} The checkpoint before it is used.")
        if not warnings:
            raise CheckpointError(
                f"no checkpoint in {folder}. A run writes one at its end, at Ctrl-C, and every checkpoint.every_s or "
                "checkpoint.every_env_steps. Name another run, or start anew without --resume."
            )
        problems = "\n".join(warning.removesuffix(" The checkpoint before it is used.") for warning in warnings)
        raise CheckpointError(f"no good checkpoint in {folder}:\n{problems}\nName another run, or start anew.")

    def _remove_old(self, written: Path) -> None:
        """Remove what is neither among the newest nor the best, nor just written. Files without a label stay."""
        newest = sorted(self._labels, key=lambda path: self._labels[path].save, reverse=True)
        kept = {written, *newest[: self.keep]}
        best = self.best()
        if self.keep_best and best is not None:
            kept.add(best)
        for path in newest:
            if path not in kept:
                try:
                    path.unlink(missing_ok=True)
                except OSError:
                    continue  # the next save tries again
                del self._labels[path]


def _on_cpu(value: Any) -> Any:
    """Return the same with tensors on the CPU, so that a machine without the device can read them."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def _check_finite(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _check_finite(item, f"{path}.{name}")
    elif isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all()):
        count = int((~torch.isfinite(value)).sum())
        raise TrainingError(
            f"no checkpoint is written: {count} of {value.numel()} values of {path} are not finite. "
            "Training has diverged; lower the learning rate and resume from the last checkpoint."
        )


def _num_bytes(value: Any) -> int:
    """About the size of a state's file."""
    if isinstance(value, dict):
        return sum(_num_bytes(item) for item in value.values())
    if isinstance(value, list):
        return sum(_num_bytes(item) for item in value)
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else len(str(value))


def _write_durably(temporary: Path, path: Path, write: Callable[[BinaryIO], Label]) -> Label:
    with open(temporary, "wb") as file:
        label = write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return label


def _labelled(folder: Path) -> list[tuple[Path, Label | None]]:
    """Checkpoint files of a folder with their labels; None where the label is damaged."""
    paths = [path for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name) and path.is_file()]
    return [(path, checkpoint_file.read_label(path)) for path in paths]


def _newest_first(folder: Path) -> list[Path]:
    """Order by running number; a file whose label is gone may be the newest, so it comes first and is reported."""
    try:
        labelled = _labelled(folder)
    except OSError as error:
        raise _failure("reading checkpoints", folder, error) from error
    return [path for path, _ in sorted(labelled, key=lambda entry: _age_key(entry[1]), reverse=True)]


def _age_key(label: Label | None) -> float:
    return math.inf if label is None else label.save


def _read(path: Path) -> dict[str, Any]:
    try:
        label, num_bytes = checkpoint_file.read_label(path), path.stat().st_size
        if label is None:
            raise CheckpointError(f"{path} is damaged (cut short?) or no checkpoint of rltrain: {num_bytes} bytes.")
        if not checkpoint_file.is_whole(path, label):
            raise CheckpointError(f"{path} is damaged: its content does not match its checksum.")
    except OSError as error:
        raise _failure("reading a checkpoint", path, error) from error
    if label.format != checkpoint_file.FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {label.format}; this version of rltrain reads format "
            f"{checkpoint_file.FORMAT}. Use the version that wrote it."
        )
    try:
        return validate(checkpoint_file.read(path))
    except ValueError as problem:
        what = str(problem)
    except Exception as error:  # whatever torch meets in bytes made by somebody else; its own advice is unsafe
        what = f"its content cannot be read ({type(error).__name__})"
    raise CheckpointError(f"{path} is damaged or not a checkpoint of rltrain: {what}.")


def _failure(doing: str, path: Path, error: OSError, needed_bytes: int | None = None) -> CheckpointError:
    """Turn an operating-system error into one message that says what to do."""
    if error.errno in _FULL:
        needed = "" if needed_bytes is None else f"{needed_bytes:,} bytes needed, "
        return CheckpointError(
            f"{doing} failed, there is no room: {path}: {error.strerror} ({needed}{_free_bytes(path):,} bytes free). "
            "Earlier checkpoints are untouched. Free some space, or lower checkpoint.keep."
        )
    return CheckpointError(f"{doing} failed: {path}: {error.strerror}. Check that the path exists and its permissions.")


def _free_bytes(path: Path) -> int:
    existing = next(parent for parent in [path, *path.absolute().parents] if parent.exists())
    return shutil.disk_usage(existing).free
