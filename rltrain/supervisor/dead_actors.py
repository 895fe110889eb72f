"""What a dead actor leaves in shared memory, and when it can be taken back.

Owns: the list of dead actors whose slots the inference server may still write to. Called by the supervisor.
"""

from __future__ import annotations

import time

from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.roles import RolePlan


class DeadActors:
    """Withdraws the requests of dead actors and returns their slots.

    Args:
        memory: of the run.
        plans: of all processes, by name.
    """

    def __init__(self, memory: RunMemory, plans: dict[str, RolePlan]):
        self.memory, self.plans = memory, plans
        self._pending: dict[str, tuple[int, int]] = {}
        """Name -> the server's batch count and the time (ns) when its requests were withdrawn."""

    def disown(self, name: str) -> None:
        """Withdraw a dead actor's requests. Its slots return once the server cannot be writing to them any more."""
        for lane in self.plans[name].lanes:
            self.memory.mailboxes.set_live(lane, False)
            self.memory.mailboxes.cancel(lane)
        server = self.memory.rows.get("inference")
        self._pending[name] = (int(server.get("batches")) if server else 0, time.monotonic_ns())
        self.reclaim()

    def reclaim(self) -> None:
        """Return the slots of dead actors.

        The server may be in a batch that it began before the request was withdrawn. That batch has ended when its
        count has moved on, or when it has begun to wait since.
        """
        server = self.memory.rows.get("inference")
        for name, (batches, since_ns) in list(self._pending.items()):
            if server is None or server.get("batches") > batches or server.waits_since("wait_request", since_ns):
                self.memory.ring.reclaim(self.plans[name].row + 1)
                del self._pending[name]

    def is_pending(self, name: str) -> bool:
        """Whether slots of this actor are not back yet; until then its owner id must not be in use again."""
        return name in self._pending
