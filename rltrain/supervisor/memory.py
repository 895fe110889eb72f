"""The shared memory of a run as the supervisor sees it.

Owns: the arena. Made by boot once every size is known; read and written by the supervisor until it closes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.config.schema import Config
from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec, FragmentSchema
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


def check_replay_memory(
    config: Config, spec: EnvSpec, num_lanes: int, arena_bytes: int = 0, held_bytes: int = 0
) -> str | None:
    """Refuse a replay that cannot be held; it would be found out hours later, when its last page is touched.

    Args:
        config: the resolved configuration.
        spec: what the env is.
        num_lanes: env groups in the whole run.
        arena_bytes: of the run's shared memory, which is not reserved yet.
        held_bytes: of a loaded replay in the learner, which goes once the replay has taken it over.

    Returns:
        What the user should know where `replay.allow_overcommit` lets it pass.

    Raises:
        ConfigError: it is larger than the memory that is free (or its control group's), or does not fit the fragments.
    """
    layout, replay = ReplayLayout.of(config, spec, num_lanes), config.replay
    if problems := layout.check():
        raise ConfigError(problems)
    needed = layout.num_bytes * ((not replay.in_file) + replay.save)
    available = available_bytes() + held_bytes - arena_bytes
    if needed <= available:
        return None
    copy = ""
    if replay.save:
        copy = " (a copy for each checkpoint, replay.save)" if replay.in_file else " (twice its size, for replay.save)"
    text = (
        f"replay.capacity = {replay.capacity:,} transitions need {needed / _GIB:.1f} GiB of memory{copy}, but "
        f"{available / _GIB:.1f} GiB are available."
    )
    if replay.allow_overcommit:
        return f"{text} The run may be killed for it: replay.allow_overcommit is set."
    accepted = ["a smaller replay.capacity"]
    accepted += ["replay.save = false"] if replay.save else []
    accepted += [] if replay.in_file else ["replay.in_file = true (a file on the disk of the run folder)"]
    raise ConfigError(f"{text} Accepted: {', '.join(accepted)}, or replay.allow_overcommit = true to try.")


def check_fragment_memory(config: Config, schema: FragmentSchema, arena_bytes: int) -> None:
    """Refuse earlier fragments, `algo.appo.replay_share`, that do not fit the memory that is free.

    Raises:
        ConfigError: they do not.
    """
    appo = config.algo.appo
    if config.algo.name != "appo" or not appo.replay_share:
        return
    row = sum(f.row_bytes(1) for f in schema.fields if f.per_env and not f.name.startswith("episode_"))
    needed, available = appo.replay_columns * (schema.fragment_length + 1) * row, available_bytes() - arena_bytes
    if needed > available:
        raise ConfigError(
            f"algo.appo.replay_columns = {appo.replay_columns:,} fragments need {needed / _GIB:.1f} GiB of memory, but "
            f"{available / _GIB:.1f} GiB are available. Accepted: fewer of them, or algo.appo.replay_share = 0."
        )
