"""The shared memory of a run as the supervisor sees it.

Owns: the arena. Made by boot once every size is known; read and written by the supervisor until it closes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.config.schema import Config
from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard, CounterRow
from rltrain.shm.free_memory import available_bytes
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.ring import TrajectoryRing

_GIB = 1 << 30


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


def check_replay_memory(config: Config, spec: EnvSpec, num_lanes: int) -> str | None:
    """Refuse a replay that cannot be held; it would be found out hours later, when its last page is touched.

    Args:
        config: the resolved configuration.
        spec: what the env is.
        num_lanes: env groups in the whole run.

    Returns:
        What the user should know where `replay.allow_overcommit` lets it pass.

    Raises:
        ConfigError: it is larger than the memory that is free (or its control group's), or does not fit the fragments.
    """
    layout = ReplayLayout.of(config, spec, num_lanes)
    if problems := layout.check():
        raise ConfigError(problems)
    if config.replay.in_file:
        return None
    needed, available = layout.num_bytes * (2 if config.replay.save else 1), available_bytes()
    if needed <= available:
        return None
    copy = " (twice its size, since replay.save copies it into each checkpoint)" if config.replay.save else ""
    text = (
        f"replay.capacity = {config.replay.capacity:,} transitions need {needed / _GIB:.1f} GiB of memory{copy}, but "
        f"{available / _GIB:.1f} GiB are available."
    )
    if config.replay.allow_overcommit:
        return f"{text} The run may be killed for it: replay.allow_overcommit is set."
    raise ConfigError(
        f"{text} Accepted: a smaller replay.capacity, replay.in_file = true (a file of the run folder), or "
        "replay.allow_overcommit = true to try."
    )
