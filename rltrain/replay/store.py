"""The replay's transitions: rows of fragments, every observation kept once, read as n-step windows.

Row t of an env holds the observation, the action chosen on it, and what came of it; the observation behind the window
of row t is that of a later row. An episode's final observation is the row after its end, which is not valid itself.
So nothing is kept twice, and no window crosses an episode's end or the write head: a row can be drawn once the row
`n_step` behind it is there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rltrain import native
from rltrain.fields import ACTION, NEXT, Field
from rltrain.native import ffi, lib
from rltrain.replay.frames import FrameRings
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.mapping import map_memory

VALID, TERMINATED, TRUNCATED = 1, 2, 4
_KEPT_TABLES = 4
"""Of the batches whose addresses are kept: the two that a sampler fills in turn, and some more."""
_NONE = np.zeros(0, np.int64)
_NUMBERS = ("env groups", "actors.envs_per_group", "rows (replay.capacity)", "replay.n_step", "env.frame_stack")


@dataclass
class _Lane:
    """One env group's ring; rows are counted from the start and never fall."""

    head: int = 0
    """Rows written."""
    tail: int = 0
    """The oldest row that is whole."""
    pending: dict[str, np.ndarray] | None = None
    """The observation behind the last row: name -> [N, ...]."""


@dataclass(frozen=True)
class _Table:
    """The arrays of a batch, and where in memory they lie."""

    arrays: tuple[np.ndarray, ...]
    """Kept, so that no other arrays can take their places."""
    handle: Any
    owned: tuple[Any, ...]
    """What the handle points to."""


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
        offsets = layout.offsets()
        buffer = np.frombuffer(map_memory(offsets["end"], file), np.uint8)
        self._arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in layout.arrays().items():
            at, nbytes = offsets[name], prod(shape) * np.dtype(dtype).itemsize
            self._arrays[name] = buffer[at : at + nbytes].view(dtype).reshape(shape)
        self._lanes = [_Lane() for _ in range(layout.num_lanes)]
        self._leaves = {leaf.name: leaf for leaf in layout.spec.obs}
        self._fields = layout.batch_fields()
        self._frames = FrameRings(layout, self._arrays) if layout.is_stacked else None
        self._replay = ffi.new("rl_replay *", {
            "rewards": self._pointer("float *", "reward"), "flags": self._pointer("uint8_t *", "flags"),
            "num_lanes": layout.num_lanes, "rows": layout.rows_per_lane, "num_envs": layout.num_envs,
            "n_step": layout.n_step, "discount": layout.discount,
        })
        self._tables: OrderedDict[tuple[int, ...], _Table] = OrderedDict()

    def _pointer(self, kind: str, name: str) -> Any:
        return native.pointer(kind, native.address_of(self._arrays[name]))

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

        Raises:
            ValueError: an array does not fit the layout; nothing was changed.
        """
        self._check(fragment)
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

    def _check(self, fragment: dict[str, np.ndarray]) -> None:
        """Frames are moved by address, so nothing may be of another shape or dtype."""
        lead = (self.layout.fragment_length + 1, self.layout.num_envs)
        for field in self._fields:
            if field.name in self._leaves or field.name == ACTION:
                x = fragment[field.name]
                if x.shape != (*lead, *field.shape) or x.dtype != field.dtype:
                    raise ValueError(
                        f"fragment[{field.name!r}] is {x.dtype} {x.shape}; needed is {field.dtype} "
                        f"{(*lead, *field.shape)}"
                    )
        for name in ("reward", "terminated", "truncated", "valid"):
            if fragment[name].shape != lead:
                raise ValueError(f"fragment[{name!r}] is {fragment[name].shape}; needed is {lead}")

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
                if self._frames is not None and name in self._leaves:
                    self._frames.push(name, lane, start, part)
                else:
                    self._arrays[name][lane, start : start + len(part)] = part
        ring.head, ring.tail = ring.head + count, overwritten
        if self._frames is not None:
            ring.tail = self._frames.first_whole(lane, ring.tail, ring.head)
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

    # -- out ---------------------------------------------------------------------------------------------------

    def batch_fields(self) -> tuple[Field, ...]:
        """Return name, shape and dtype of one transition of a batch, see `ReplayLayout.batch_fields`."""
        return self.layout.batch_fields()

    def gather(self, items: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Read transitions.

        Args:
            items: int64 [B], items that can be drawn.
            out: name -> C-contiguous [B, ...] for each of `batch_fields`; overwritten. The same arrays again are
                cheaper.

        Raises:
            IndexError: an item is out of range; nothing was written.
            ValueError: `items` or an array does not fit; nothing was written.
        """
        table = self._table(out)
        items = np.ascontiguousarray(items, np.int64)
        if items.shape != (table.handle.count,):
            raise ValueError(f"{items.shape} items do not fit a batch of {table.handle.count}")
        if lib.rl_replay_gather(self._replay, ffi.from_buffer("int64_t[]", items), table.handle) < 0:
            raise IndexError(f"items must be in [0, {self.layout.num_items})")

    def _table(self, out: dict[str, np.ndarray]) -> _Table:
        """Where each field goes to; made once for arrays that are used again."""
        arrays = tuple([out[field.name] for field in self._fields])
        key = tuple(map(id, arrays))
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._build(arrays)
            if len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return table

    def _build(self, arrays: tuple[np.ndarray, ...]) -> _Table:
        count = len(arrays[0])
        for field, x in zip(self._fields, arrays, strict=True):
            wanted = (count, *field.shape)
            if x.shape != wanted or x.dtype != field.dtype or not x.flags.c_contiguous or not x.flags.writeable:
                raise ValueError(
                    f"out[{field.name!r}] is {x.dtype} {x.shape}; needed is {field.dtype} {wanted}, writable and "
                    "C-contiguous"
                )
        by_name = {field.name: x for field, x in zip(self._fields, arrays, strict=True)}
        rows = ffi.new("rl_replay_field[]", len(self._leaves) + 1)
        for to, name in zip(rows, (ACTION, *self._leaves), strict=True):
            to.rows = native.pointer("uint8_t *", native.address_of(by_name[name]))
            if name in self._leaves:
                to.next_rows = native.pointer("uint8_t *", native.address_of(by_name[NEXT + name]))
            if name in self._leaves and self._frames is not None:
                to.frames = self._frames.handles[name]
            else:
                to.source, to.item_bytes = self._pointer("uint8_t *", name), self._arrays[name][0, 0, 0].nbytes
        next_items = ffi.new("int64_t[]", count)
        handle = ffi.new("rl_replay_batch *", {
            "count": count, "next_items": next_items, "fields": rows, "num_fields": len(rows),
            "returns": native.pointer("float *", native.address_of(by_name["return_"])),
            "discounts": native.pointer("float *", native.address_of(by_name["discount"])),
        })
        return _Table(arrays, handle, (next_items, rows))

    # -- checkpoints -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what has been written so far: views, valid until the next `insert`."""
        rows = min(self.layout.rows_per_lane, max(ring.head for ring in self._lanes))
        kept = {"layout": np.array(self._numbers(), np.int64)}
        for name, x in self._arrays.items():
            kept[name] = x[:, :rows]
        for name, pushed in (self._frames.pushed if self._frames is not None else {}).items():
            kept[name] = self._arrays[name][:, : min(self.layout.frames_per_env, int(pushed.max()))]
            kept[f"pushed.{name}"] = pushed
        kept["heads"] = np.array([ring.head for ring in self._lanes], np.int64)
        kept["tails"] = np.array([ring.tail for ring in self._lanes], np.int64)
        kept["begun"] = np.array([ring.pending is not None for ring in self._lanes])
        for name, leaf in self._leaves.items():
            none = np.zeros((self.layout.num_envs, *leaf.shape), leaf.dtype)
            kept[f"pending.{name}"] = np.stack([(ring.pending or {}).get(name, none) for ring in self._lanes])
        return kept

    def _numbers(self) -> tuple[int, ...]:
        """What must be equal for a state to fit: which row an item is, and which of them can be drawn."""
        layout = self.layout
        return layout.num_lanes, layout.num_envs, layout.rows_per_lane, layout.n_step, layout.frame_stack

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Restore from `state_dict` output of a store with the same layout.

        Raises:
            ValueError: it is of another layout, or damaged; nothing was changed.
        """
        self._check_state(state)
        for name, x in self._arrays.items():
            x[:, : state[name].shape[1]] = state[name]
        if self._frames is not None:
            for name, pushed in self._frames.pushed.items():
                pushed[...] = state[f"pushed.{name}"]
        self.size = 0
        for lane, ring in enumerate(self._lanes):
            ring.head, ring.tail = int(state["heads"][lane]), int(state["tails"][lane])
            ring.pending = None
            if state["begun"][lane]:
                ring.pending = {name: state[f"pending.{name}"][lane].copy() for name in self._leaves}
            self.size += len(self._items(lane, ring.tail, ring.head - self.layout.n_step))

    def _check_state(self, state: dict[str, np.ndarray]) -> None:
        saved = state.get("layout", np.zeros(0, np.int64)).tolist()
        if saved != list(self._numbers()):
            pairs = zip(_NUMBERS, saved, self._numbers(), strict=False)
            changed = [f"{name} was {old} and is {new}" for name, old, new in pairs if old != new]
            raise ValueError(", ".join(changed) or "it says nothing of its sizes")
        for name, like in self.state_dict().items():
            x = state.get(name)
            whole = self._arrays.get(name, like)
            if x is None or x.dtype != like.dtype or not _fits(x.shape, whole.shape, name in self._arrays):
                found = "missing" if x is None else f"{x.dtype} {x.shape}"
                raise ValueError(f"{name} is {found}, and must fit {whole.dtype} {whole.shape}")


def _fits(saved: tuple[int, ...], whole: tuple[int, ...], may_be_part: bool) -> bool:
    """Whether an array has the shape of another, or of its first part along the axis of rows or frames."""
    if saved == whole or not may_be_part:
        return saved == whole
    return len(saved) == len(whole) and saved[0] == whole[0] and saved[1] < whole[1] and saved[2:] == whole[2:]
