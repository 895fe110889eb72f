"""Copies between the slab and a process's own arrays: many rows in one C call, with the GIL released.

Owns: nothing; works on the regions `field:*`.
Written by: `scatter_step`. Read by: `gather_step` and `gather_fragment`.
Blocks on: nothing. Unblocked by: nothing.
If the peer dies: the rows stay as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrain import native
from rltrain.fields import Field
from rltrain.native import ffi, lib
from rltrain.shm.arena import Arena

_KEPT_TABLES = 8
"""Tables kept for arrays seen before: the two host batches and the staging rows that a process uses in turn."""


@dataclass(frozen=True, slots=True)
class _SlabField:
    """What copies need to know about a field, computed once."""

    array: np.ndarray
    start: object
    dtype: np.dtype
    shape: tuple[int, ...]
    block_rows: int
    block_bytes: int

    @classmethod
    def of(cls, field: Field, arena: Arena) -> _SlabField:
        schema = arena.layout.schema
        region = f"field:{field.name}"
        array = arena.view(region, field.dtype, (arena.layout.num_slots, *schema.array_shape(field)))
        return cls(
            array, native.pointer("uint8_t *", arena.address(region)), np.dtype(field.dtype), field.shape,
            schema.num_envs if field.per_env else 1, field.row_bytes(schema.num_envs),
        )


class RowCopies:
    """The fields of an arena's slab and how to move their rows.

    Concurrency: any thread; which rows may be touched is decided by who holds the slot.
    """

    def __init__(self, arena: Arena):
        layout = arena.layout
        self.schema = layout.schema
        self._num_steps = self.schema.fragment_length + 1
        self._num_slots = layout.num_slots
        self._fields = {f.name: _SlabField.of(f, arena) for f in self.schema.fields}
        self._tables: OrderedDict[tuple, tuple] = OrderedDict()

    def field(self, name: str) -> np.ndarray:
        """Return a field of all slots, `[slots, T+1, N, ...]`, or `[slots, T+1]` for a group field."""
        return self._fields[name].array

    def gather_step(self, names: list[str], slots: np.ndarray, steps: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Copy one step of one env group for each of n requests.

        Args:
            names: fields to copy.
            slots: integers [n].
            steps: integers [n], in [0, T].
            out: name -> C-contiguous [>= n * N, ...] ([>= n] for a group field), filled from the first row on.

        Raises:
            IndexError: a slot or step is out of range, or an array too short; nothing was copied.
            ValueError: an array does not fit its field.

        Concurrency: releases the GIL. The same arrays again are cheaper: their table is kept.
        """
        table = self._table(names, out, len(slots))
        self._move(lib.rl_gather_step, table, len(names), slots, steps)

    def scatter_step(self, names: list[str], slots: np.ndarray, steps: np.ndarray, rows: dict[str, np.ndarray]) -> None:
        """Copy one step of one env group for each of n requests back into the slab: the reverse of `gather_step`.

        Args:
            names: fields to copy.
            slots: integers [n].
            steps: integers [n], in [0, T].
            rows: name -> [n * N, ...] of the field's dtype.

        Raises:
            IndexError: a slot or step is out of range, or an array too short; nothing was copied.
            ValueError: an array does not fit its field.

        Concurrency: releases the GIL. Only for rows whose request is open.
        """
        arrays = {name: np.ascontiguousarray(rows[name]) for name in names}
        table, _ = self._build(names, arrays, len(slots))
        self._move(lib.rl_scatter_step, table, len(names), slots, steps)

    def gather_fragment(self, slot: int, column: int, out: dict[str, np.ndarray]) -> None:
        """Copy a whole fragment into a batch, beside the others.

        Args:
            slot: a slot that this process took.
            column: first of the N columns to fill; a multiple of N.
            out: name -> C-contiguous [T+1, columns, ...]; group fields [T+1, columns // N], filled at column // N.
                Fields that are missing in it are not copied.

        Raises:
            IndexError: the slot or the columns are out of range; nothing was copied.
            ValueError: an array does not fit its field.

        Concurrency: releases the GIL.
        """
        position, rest = divmod(column, self.schema.num_envs)
        if rest or column < 0:
            raise ValueError(f"column {column} is not a multiple of the {self.schema.num_envs} envs of a group")
        if not 0 <= slot < self._num_slots:
            raise IndexError(f"slot {slot} is outside [0, {self._num_slots})")
        table = self._table(None, out, position + 1)
        lib.rl_gather_fragment(table, len(out), slot, position, self._num_steps)

    def _move(
        self, function: Callable[..., int], table: Any, num_fields: int, slots: np.ndarray, steps: np.ndarray
    ) -> None:
        slots = np.ascontiguousarray(slots, np.int64)
        steps = np.ascontiguousarray(steps, np.int64)
        if slots.shape != steps.shape:
            raise ValueError(f"slots {slots.shape} and steps {steps.shape} must have the same length")
        rc = function(
            table, num_fields, ffi.from_buffer("int64_t[]", slots), ffi.from_buffer("int64_t[]", steps), len(slots),
            self._num_slots, self._num_steps,
        )
        if rc < 0:
            raise IndexError(f"slots must be in [0, {self._num_slots}) and steps in [0, {self._num_steps})")

    def _table(self, names: list[str] | None, out: dict[str, np.ndarray], num_blocks: int) -> Any:
        """The table for arrays to fill; kept, since building it costs more than a small copy. None: whole fragments."""
        key = (id(out), None if names is None else tuple(names))
        kept = self._tables.get(key)
        if kept is not None:
            table, arrays, room = kept
            # The table has the arrays' addresses: another array under the same name needs another table.
            same = len(arrays) == len(out if names is None else names)
            if same and num_blocks <= room and all(out.get(name) is array for name, array in arrays.items()):
                return table
        wanted = list(out) if names is None else names
        table, room = self._build(wanted, out, num_blocks, whole=names is None)
        if any(not out[name].flags.writeable for name in wanted):
            raise ValueError("the arrays to fill must be writable")
        self._tables[key] = (table, {name: out[name] for name in wanted}, room)
        if len(self._tables) > _KEPT_TABLES:
            self._tables.popitem(last=False)
        return table

    def _build(
        self, names: list[str], arrays: dict[str, np.ndarray], num_blocks: int, whole: bool = False
    ) -> tuple[Any, int]:
        """A table of fields and addresses, and how many blocks fit into the smallest of the arrays."""
        table = ffi.new("rl_copy[]", len(names))
        room = None
        for i, name in enumerate(names):
            field, array = self._fields[name], arrays[name]
            shape = array.shape
            lead = 2 if whole else 1
            if (
                array.dtype != field.dtype or shape[lead:] != field.shape or not array.flags.c_contiguous
                or (whole and shape[0] != self._num_steps)
            ):
                raise ValueError(self._misfit(name, array, whole))
            fits = shape[lead - 1] // field.block_rows
            room = fits if room is None else min(room, fits)
            if num_blocks > fits:
                raise IndexError(f"{name}: {num_blocks} blocks of {field.block_rows} rows exceed an array {shape}")
            table[i] = (field.start, ffi.from_buffer("uint8_t[]", array), field.block_bytes, array.strides[0])
        return table, room or 0

    def _misfit(self, name: str, array: np.ndarray, whole: bool) -> str:
        field = self._fields[name]
        axes = f"[{self._num_steps}, columns" if whole else "[rows"
        wanted = ", ".join([axes, *map(str, field.shape)]) + "]"
        return f"{name} must be C-contiguous {field.dtype} {wanted}, not {array.dtype} {array.shape}"
