"""The shared memory of a run as the supervisor sees it.

Owns: the arena. Made by boot once every size is known; read and written by the supervisor until it closes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard, CounterRow
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.ring import TrajectoryRing


@dataclass(frozen=True)
class RunMemory:
    """The arena and the handles on its parts."""

    arena: Arena
    control: Control
    ring: TrajectoryRing
    mailboxes: Mailboxes
    rows: dict[str, CounterRow]
    """Counter row of each process, by its name."""

    @classmethod
    def create(cls, layout: ArenaLayout, rows: dict[str, int]) -> RunMemory:
        """Reserve the memory; `rows` gives the number of each process's counter row.

        Raises:
            ConfigError: the machine has not that much memory.
        """
        arena = Arena.create(layout)
        board = CounterBoard(arena)
        return cls(
            arena, Control(arena), TrajectoryRing(arena), Mailboxes(arena),
            {name: board.row(row) for name, row in rows.items()},
        )
