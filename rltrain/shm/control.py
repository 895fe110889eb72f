"""Single words that every process looks at: stop, finish, and when to take snapshots.

Owns: the region `control`.
Written by: the supervisor (`stop`, `finish`), the learner (`snapshot_fragment`), actors (`notify`).
Read by: every process.
Blocks on: `wait`, until a word changes. Unblocked by: whoever sets one, and `notify`.
If the peer dies: the words keep their values; every wait ends after its time.
"""

from __future__ import annotations

from rltrain import native
from rltrain.shm.arena import Arena


class Control:
    """The control words of an arena.

    Concurrency: any process; a read is one atomic load (0.2 us), a set wakes all that wait.
    """

    def __init__(self, arena: Arena):
        self._view = arena.view("control")
        self._at = native.pointer("rl_control *", arena.address("control"))
        self._seen = native.lib.rl_control_count(self._at)

    @property
    def stop(self) -> bool:
        """Whether every process is to leave its loop now."""
        return native.lib.rl_control_stop(self._at) != 0

    @stop.setter
    def stop(self, value: bool) -> None:
        native.lib.rl_control_set_stop(self._at, value)

    @property
    def finish(self) -> bool:
        """Whether the learner is to finish its update, write a checkpoint and end the run."""
        return native.lib.rl_control_finish(self._at) != 0

    @finish.setter
    def finish(self, value: bool) -> None:
        native.lib.rl_control_set_finish(self._at, value)

    @property
    def snapshot_fragment(self) -> int | None:
        """First fragment index before which actors write snapshots, or None for no snapshots."""
        fragment_index = native.lib.rl_control_snapshot_fragment(self._at)
        return None if fragment_index < 0 else fragment_index

    @snapshot_fragment.setter
    def snapshot_fragment(self, fragment_index: int | None) -> None:
        native.lib.rl_control_set_snapshot_fragment(self._at, -1 if fragment_index is None else fragment_index)

    def wait(self, timeout_s: float) -> None:
        """Wait until a word was set or `notify` called since this object's last wait, or since it was made.

        Concurrency: blocks up to `timeout_s`, or until a signal arrives. One waiting thread per object.
        """
        native.lib.rl_control_wait(self._at, self._seen, native.nanoseconds(timeout_s))
        self._seen = native.lib.rl_control_count(self._at)

    def notify(self) -> None:
        """Wake all that wait, without a change."""
        native.lib.rl_control_notify(self._at)
