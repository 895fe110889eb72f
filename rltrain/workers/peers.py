"""Whether it is worth while for the learner to wait: no longer once a process that it waits for has fallen silent.

Owns: nothing. Read by the learner, from the counter rows of actors and server.
"""

from __future__ import annotations

from rltrain.shm.arena import Arena
from rltrain.shm.counters import CounterBoard


class Peers:
    """The processes without which there is no next batch.

    Args:
        arena: the run's arena.
        patience_s: silence after which one is not waited for, such as an env that never returns.
    """

    def __init__(self, arena: Arena, patience_s: float):
        board = CounterBoard(arena)
        roles = enumerate(arena.layout.roles)
        self._rows = [board.row(i) for i, role in roles if role in ("actor", "inference")]
        self._patience_s = patience_s

    @property
    def are_silent(self) -> bool:
        """Whether one of them has given no sign of life for longer than that, or is dead for as long."""
        return any(row.heartbeat_age_s > self._patience_s for row in self._rows)
