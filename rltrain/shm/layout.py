"""Where everything lies in the arena: computed once by the supervisor, handed to every process as JSON.

Owns: nothing; no shared word is read or written here, nothing blocks.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass

from rltrain.fields import FragmentSchema
from rltrain.native import lib
from rltrain.shm.counters import ROW_BYTES

PAGE_BYTES = 4096
LINE_BYTES = 64
HEADER_BYTES = 64


@dataclass(frozen=True)
class Region:
    """A named piece of the arena.

    Args:
        offset: from the arena's start, in bytes; a multiple of 4096 for regions of a page or more, else of 64.
        nbytes: size in bytes.
    """

    offset: int
    nbytes: int


@dataclass(frozen=True)
class ArenaLayout:
    """The regions of an arena and what they were computed from.

    Args:
        schema: fields of one fragment.
        num_slots: slots of the trajectory ring.
        num_actors: actor processes.
        groups_per_actor: env groups in each; lanes = num_actors * groups_per_actor.
        weight_bytes: size of one flat weight version.
        snapshot_bytes: room for one lane's env state; 0 for none.
        roles: role of each counter row.
        regions: by name; `field:<name>` is a field's array `[slots, T+1, N, ...]`.
        nbytes: size of the whole arena, whole pages.
    """

    schema: FragmentSchema
    num_slots: int
    num_actors: int
    groups_per_actor: int
    weight_bytes: int
    snapshot_bytes: int
    roles: tuple[str, ...]
    regions: dict[str, Region]
    nbytes: int

    @property
    def num_lanes(self) -> int:
        """Env groups in the whole run."""
        return self.num_actors * self.groups_per_actor

    @property
    def weight_stride_bytes(self) -> int:
        """Distance between the two weight buffers."""
        return _round_up(self.weight_bytes, PAGE_BYTES)

    @property
    def snapshot_stride_bytes(self) -> int:
        """Distance between the snapshot areas of two lanes."""
        return _round_up(self.snapshot_bytes, LINE_BYTES)

    @classmethod
    def plan(
        cls, schema: FragmentSchema, num_slots: int, num_actors: int, groups_per_actor: int, weight_bytes: int,
        snapshot_bytes: int, roles: tuple[str, ...],
    ) -> ArenaLayout:
        """Lay out an arena; pure arithmetic, nothing is created.

        Raises:
            ValueError: a count is not positive, or there are more counter rows than owners can be numbered.
        """
        num_lanes = num_actors * groups_per_actor
        if min(num_slots, num_lanes, weight_bytes) < 1 or snapshot_bytes < 0:
            raise ValueError(f"empty arena: {num_slots=}, {num_lanes=}, {weight_bytes=}, {snapshot_bytes=}")
        if not 1 <= len(roles) <= lib.RL_MAX_OWNER:
            raise ValueError(f"{len(roles)} counter rows; 1 to {lib.RL_MAX_OWNER} are possible")
        sizes = {
            "header": HEADER_BYTES,
            "control": lib.RL_CONTROL_BYTES,
            "ring": lib.RL_RING_BYTES,
            "slots": num_slots * lib.RL_SLOT_BYTES,
            "doorbell": lib.RL_DOORBELL_BYTES,
            "mailboxes": num_lanes * lib.RL_MAILBOX_BYTES,
            "counters": len(roles) * ROW_BYTES,
            "weights": lib.RL_BOARD_BYTES,
            "weight_buffers": 2 * _round_up(weight_bytes, PAGE_BYTES),
            "snapshots": num_lanes * lib.RL_SEQLOCK_BYTES,
            "snapshot_areas": num_lanes * _round_up(snapshot_bytes, LINE_BYTES),
        }
        step_rows = num_slots * (schema.fragment_length + 1)
        sizes |= {f"field:{f.name}": step_rows * f.row_bytes(schema.num_envs) for f in schema.fields}
        regions, end = {}, 0
        for name, nbytes in sizes.items():
            offset = _round_up(end, PAGE_BYTES if nbytes >= PAGE_BYTES else LINE_BYTES)
            regions[name] = Region(offset, nbytes)
            end = offset + nbytes
        return cls(
            schema, num_slots, num_actors, groups_per_actor, weight_bytes, snapshot_bytes, tuple(roles), regions,
            _round_up(end, PAGE_BYTES),
        )

    def to_dict(self) -> dict:
        """Return a JSON-able copy."""
        return {**asdict(self), "schema": self.schema.to_dict(), "roles": list(self.roles)}

    @classmethod
    def from_dict(cls, data: dict) -> ArenaLayout:
        """Rebuild from `to_dict` output."""
        regions = {name: Region(**region) for name, region in data["regions"].items()}
        schema = FragmentSchema.from_dict(data["schema"])
        return cls(**{**data, "schema": schema, "roles": tuple(data["roles"]), "regions": regions})

    def fingerprint(self) -> int:
        """Return 32 bits that differ when anything in the layout does."""
        return zlib.crc32(json.dumps(self.to_dict(), sort_keys=True).encode())


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
