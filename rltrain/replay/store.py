"""The replay's transitions: rows of fragments, every observation kept once, read as n-step windows.

Row t of an env holds the observation, the action chosen on it, and what came of it; the observation behind the window
of row t is that of a later row. An episode's final observation is the row after its end, which is not valid itself.
So nothing is kept twice, and no window crosses an episode's end or the write head: a row can be drawn once the row
`n_step` behind it is there.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rltrain import native
from rltrain.errors import ConfigError
from rltrain.fields import ACTION, Field
from rltrain.native import ffi, lib
from rltrain.replay.layout import NEXT, ReplayLayout

VALID, TERMINATED, TRUNCATED = 1, 2, 4
_KEPT_TABLES = 8
_NONE = np.zeros(0, np.int64)


@dataclass
class _Lane:
    """One env group's ring; rows are counted from the start and never fall."""

    head: int = 0
    """Rows written."""
    tail: int = 0
    """The oldest row that is whole."""
    pending: dict[str, np.ndarray] | None = None
    """The observation behind the last row: name -> [N, ...]."""


class ReplayStore:
    """A ring of transitions for each env.

    Args:
        layout: what is kept.
        file: where it is kept, a file to be mapped; None keeps it in memory. Pages are taken when they are written.

    Raises:
        ConfigError: the disk has no room for the file.

    Concurrency: one thread at a time; `gather` releases the GIL while it copies.
    """

    def __init__(self, layout: ReplayLayout, file: Path | None = None):
        self.layout, self.file = layout, file
        self.size = 0
        """Transitions that can be drawn."""
        self._memory = _map(layout.offsets()["end"], file)
        buffer = np.frombuffer(self._memory, np.uint8)
        self._arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in layout.arrays().items():
            at, nbytes = layout.offsets()[name], prod(shape) * np.dtype(dtype).itemsize
            self._arrays[name] = buffer[at : at + nbytes].view(dtype).reshape(shape)
        self._lanes = [_Lane() for _ in range(layout.num_lanes)]
        self._leaves = [leaf.name for leaf in layout.spec.obs]
        self._replay = ffi.new("rl_replay *", {
            "rewards": self._pointer("float *", "reward"), "flags": self._pointer("uint8_t *", "flags"),
            "num_lanes": layout.num_lanes, "rows": layout.rows_per_lane, "num_envs": layout.num_envs,
            "n_step": layout.n_step, "discount": layout.discount,
        })
        num_rings = layout.num_lanes * layout.num_envs
        self._pushed = {name: np.zeros(num_rings, np.int64) for name in self._leaves}
        """Frames that came into each env's ring of frames."""
        self._frames = {name: self._frames_of(name) for name in self._leaves} if layout.is_stacked else {}
        self._tables: OrderedDict[tuple[int, ...], tuple[Any, list[tuple[Any, Any, Any]]]] = OrderedDict()

    def _pointer(self, kind: str, name: str) -> Any:
        return native.pointer(kind, native.address_of(self._arrays[name]))

    def _frames_of(self, name: str) -> Any:
        frame = self._arrays[name][0, 0]
        return ffi.new("rl_frames *", {
            "source": self._pointer("uint8_t *", name), "newest": self._pointer("int64_t *", f"newest.{name}"),
            "num_frames": self.layout.frames_per_env, "stack": self.layout.frame_stack, "frame_bytes": frame.nbytes,
        })

    # -- in ----------------------------------------------------------------------------------------------------

    def insert(
        self, lane: int, fragment: dict[str, np.ndarray], is_continued: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append a fragment to its lane's ring.

        Args:
            lane: number of the env group.
            fragment: name -> [T+1, N, ...] as in `FragmentSchema`; the envs' axis may be part of a wider one.
            is_continued: its first observation is the last one of the lane's fragment before. If not, what came before
                counts as truncated, at the observation that it ended with.

        Returns:
            (items that can be drawn from now on, items that no longer can), int64 each. An item in both has been given
            to another transition: let the second leave before the first enter.
        """
        ring, length = self._lanes[lane], self.layout.fragment_length
        is_cut = not is_continued and ring.pending is not None
        come, gone = self._cut(lane) if is_cut else (_NONE, _NONE)
        rows = {name: fragment[name][:length] for name in (*self._leaves, ACTION)}
        reward, clip = fragment["reward"][:length], self.layout.reward_clip
        rows["reward"] = reward if clip is None else reward.clip(-clip, clip)
        valid = fragment["valid"][:length].astype(bool)
        ended = fragment["terminated"][:length] * TERMINATED | fragment["truncated"][:length] * TRUNCATED
        rows["flags"] = np.where(valid, VALID | ended, 0).astype(np.uint8)
        entered, left = self._append(lane, rows, length)
        ring.pending = {name: fragment[name][length].copy() for name in self._leaves}
        if is_cut:
            entered = np.concatenate([np.setdiff1d(come, left), entered])
            left = np.concatenate([gone, left])
        return entered, left

    def _cut(self, lane: int) -> tuple[np.ndarray, np.ndarray]:
        """End what the lane holds with the observation it stopped at."""
        ring = self._lanes[lane]
        assert ring.pending is not None, "there is something to end"
        last = self._arrays["flags"][lane, (ring.head - 1) % self.layout.rows_per_lane]
        last[(last & VALID > 0) & (last & TERMINATED == 0)] |= TRUNCATED
        num_envs, action = self.layout.num_envs, self._arrays[ACTION]
        rows = {name: x[np.newaxis] for name, x in ring.pending.items()}
        rows[ACTION] = np.zeros((1, *action.shape[2:]), action.dtype)
        rows["reward"], rows["flags"] = np.zeros((1, num_envs), np.float32), np.zeros((1, num_envs), np.uint8)
        return self._append(lane, rows, 1)

    def _append(self, lane: int, rows: dict[str, np.ndarray], count: int) -> tuple[np.ndarray, np.ndarray]:
        ring, layout = self._lanes[lane], self.layout
        ready, tail = max(0, ring.head - layout.n_step), ring.tail
        overwritten = max(tail, ring.head + count - layout.rows_per_lane)
        left = [self._items(lane, tail, min(overwritten, ready))]
        at = ring.head % layout.rows_per_lane
        first = min(count, layout.rows_per_lane - at)
        for name, x in rows.items():
            for start, part in ((at, x[:first]), (0, x[first:])):
                if not len(part):
                    continue
                if name in self._frames:
                    self._push(name, lane, start, part)
                else:
                    self._arrays[name][lane, start : start + len(part)] = part
        ring.head, ring.tail = ring.head + count, overwritten
        while ring.tail < ring.head and self._lacks_frames(lane, ring.tail):
            ring.tail += 1
        left.append(self._items(lane, min(overwritten, ready), min(ring.tail, ready)))
        entered = self._items(lane, max(ready, ring.tail), ring.head - layout.n_step)
        gone = np.concatenate(left)
        self.size += len(entered) - len(gone)
        return entered, gone

    def _items(self, lane: int, first: int, end: int) -> np.ndarray:
        """Valid items of the rows from `first` to before `end`, as counted from the start."""
        rows = np.arange(first, end) % self.layout.rows_per_lane
        row, env = np.nonzero(self._arrays["flags"][lane, rows] & VALID)
        return (lane * self.layout.rows_per_lane + rows[row]) * self.layout.num_envs + env

    def _push(self, name: str, lane: int, start: int, stacks: np.ndarray) -> None:
        """Add stacks [count, N, m, ...] to the rings of frames; their rows begin at row `start`."""
        frames, pushed, newest = self._frames[name], self._pushed[name], self._arrays[f"newest.{name}"]
        if not stacks[0, 0].flags.c_contiguous:
            stacks = np.ascontiguousarray(stacks)
        num_envs = self.layout.num_envs
        for env in range(num_envs):
            ring = lane * num_envs + env
            source = native.pointer("uint8_t *", native.address_of(stacks[0, env]))
            numbers = native.pointer("int64_t *", native.address_of(newest[lane, start, env:]))
            pushed[ring] = lib.rl_replay_push(
                frames, ring, int(pushed[ring]), source, stacks.strides[0], len(stacks), numbers, num_envs
            )

    def _lacks_frames(self, lane: int, row: int) -> bool:
        """Whether frames of a row's stack have been overwritten."""
        envs = slice(lane * self.layout.num_envs, (lane + 1) * self.layout.num_envs)
        for name in self._frames:
            newest = self._arrays[f"newest.{name}"][lane, row % self.layout.rows_per_lane]
            oldest_kept = self._pushed[name][envs] - self.layout.frames_per_env
            if (newest - (self.layout.frame_stack - 1) < oldest_kept).any():
                return True
        return False

    # -- out ---------------------------------------------------------------------------------------------------

    def batch_fields(self) -> tuple[Field, ...]:
        """Return name, shape and dtype of one transition of a batch, see `ReplayLayout.batch_fields`."""
        return self.layout.batch_fields()

    def gather(self, items: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Read transitions.

        Args:
            items: int64 [B], items that can be drawn.
            out: name -> C-contiguous [B, ...] for each of `batch_fields`; overwritten.

        Raises:
            IndexError: an item is out of range; nothing is promised of `out`.
        """
        returns, discounts = out["return_"], out["discount"]
        items = np.ascontiguousarray(items, np.int64)
        next_items = np.empty(len(items), np.int64)
        at, behind = ffi.from_buffer("int64_t[]", items), ffi.from_buffer("int64_t[]", next_items)
        rc = lib.rl_replay_windows(
            self._replay, at, len(items), ffi.from_buffer("float[]", returns), ffi.from_buffer("float[]", discounts),
            behind,
        )
        if rc < 0:
            raise IndexError(f"items must be in [0, {self.layout.num_items})")
        plain, stacks = self._table(len(items), out)
        lib.rl_replay_copy(plain, len(plain), at, behind, len(items))
        for frames, rows, next_rows in stacks:
            lib.rl_replay_stacks(self._replay, frames, at, behind, len(items), rows, next_rows)

    def _table(self, count: int, out: dict[str, np.ndarray]) -> tuple[Any, list[tuple[Any, Any, Any]]]:
        """Where each field comes from and goes to; made once for arrays that are used again."""
        key = tuple(native.address_of(x) for x in out.values())
        table = self._tables.get(key)
        if table is None:
            for field in self.batch_fields():
                x = out[field.name]
                if x.shape != (count, *field.shape) or x.dtype != field.dtype or not x.flags.c_contiguous:
                    raise ValueError(
                        f"out[{field.name!r}] is {x.dtype} {x.shape}; needed is C-contiguous {field.dtype} "
                        f"{(count, *field.shape)}"
                    )
            names = [(ACTION, ACTION, False)]
            if not self._frames:
                names += [(leaf, prefix + leaf, prefix == NEXT) for leaf in self._leaves for prefix in ("", NEXT)]
            plain = ffi.new("rl_replay_field[]", [
                (self._pointer("uint8_t *", source), native.pointer("uint8_t *", native.address_of(out[target])),
                 out[target][0].nbytes, is_next)
                for source, target, is_next in names
            ])
            stacks = [
                (frames, *(native.pointer("uint8_t *", native.address_of(out[prefix + leaf])) for prefix in ("", NEXT)))
                for leaf, frames in self._frames.items()
            ]
            table = self._tables[key] = plain, stacks
            if len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return table

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what has been written so far: views, valid until the next `insert`."""
        rows = min(self.layout.rows_per_lane, max(ring.head for ring in self._lanes))
        kept = {}
        for name, x in self._arrays.items():
            if name in self._frames:
                kept[name] = x[:, : min(self.layout.frames_per_env, int(self._pushed[name].max()))]
                kept[f"pushed.{name}"] = self._pushed[name]
            else:
                kept[name] = x[:, :rows]
        kept["heads"] = np.array([ring.head for ring in self._lanes], np.int64)
        kept["tails"] = np.array([ring.tail for ring in self._lanes], np.int64)
        kept["begun"] = np.array([ring.pending is not None for ring in self._lanes])
        for name in self._leaves:
            none = np.zeros((self.layout.num_envs, *self._leaf_shape(name)), self._arrays[name].dtype)
            kept[f"pending.{name}"] = np.stack([(ring.pending or {}).get(name, none) for ring in self._lanes])
        return kept

    def _leaf_shape(self, name: str) -> tuple[int, ...]:
        return next(leaf.shape for leaf in self.layout.spec.obs if leaf.name == name)

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Restore from `state_dict` output of a store with the same layout.

        Raises:
            ValueError: it is of another layout; nothing was changed.
        """
        for name, x in self._arrays.items():
            saved = state.get(name)
            if saved is None or saved.dtype != x.dtype or saved.ndim != x.ndim or not _fits(saved.shape, x.shape):
                raise ValueError(f"the saved {name} is {None if saved is None else saved.shape}, needed is {x.shape}")
        for name, x in self._arrays.items():
            x[:, : state[name].shape[1]] = state[name]
        for name in self._frames:
            self._pushed[name][...] = state[f"pushed.{name}"]
        self.size = 0
        for lane, ring in enumerate(self._lanes):
            ring.head, ring.tail = int(state["heads"][lane]), int(state["tails"][lane])
            ring.pending = None
            if state["begun"][lane]:
                ring.pending = {name: state[f"pending.{name}"][lane].copy() for name in self._leaves}
            self.size += len(self._items(lane, ring.tail, ring.head - self.layout.n_step))


def _fits(saved: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether an array is the first part of another, along the axis of rows or frames."""
    return saved[0] == whole[0] and saved[1] <= whole[1] and saved[2:] == whole[2:]


def _map(num_bytes: int, file: Path | None) -> mmap.mmap:
    """Map fresh memory, or a fresh file with all its blocks taken: later a full disk would kill the process."""
    num_bytes = max(num_bytes, mmap.PAGESIZE)
    if file is None:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)  # a batch touches rows all over it
        return memory
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, num_bytes)
            return mmap.mmap(fd, num_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise ConfigError(
            f"replay.in_file = true needs {num_bytes / 2**30:.1f} GiB in {file.parent}: {error.strerror}. "
            "Use a smaller replay.capacity, another run.dir, or replay.in_file = false."
        ) from error
