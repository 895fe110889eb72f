"""Starting processes and hearing of their end.

All are forked from zygotes that have loaded what they need, so that a restart takes milliseconds. They become children
of this process (a subreaper), die with it, and write stdout and stderr into pipes.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from rltrain.supervisor.logs import BoundedLog, OutputPump
from rltrain.supervisor.orphans import Orphans
from rltrain.supervisor.zygotes import Zygote
from rltrain.workers.channel import Channel, ChannelClosed

_ORPHANS_S, _LOOK_S = 2.0, 0.005
"""Longest try to end what envs left behind, and the distance between two looks."""
_KEPT_S = 60.0
"""How long the end of a process that nobody knows by name is remembered; its first message takes milliseconds."""


@dataclass
class Child:
    """A process and what is known of it."""

    name: str
    role: str
    row: int
    """Its counter row."""
    channel: Channel
    log: BoundedLog
    started_s: float
    pid: int | None = None
    life: int = 0
    """How many have had its place before, since the run began or went back to a checkpoint."""
    ready_s: float | None = None
    """When it said that it is ready, None before."""
    error: dict | None = None
    """What it reported before it ended: kind, message, traceback, exit_code."""
    status: int | None = None
    """Its exit code once it has ended, negative for a signal."""
    is_silent: bool = False
    """The supervisor killed it because its heartbeat stopped."""

    @property
    def is_ready(self) -> bool:
        """Whether it has said that it is ready."""
        return self.ready_s is not None

    @property
    def is_alive(self) -> bool:
        """Whether it has not been reaped."""
        return self.status is None

    def describe_end(self) -> str:
        """Say in words how it ended."""
        if self.status is None:
            return "is alive"
        if self.is_silent:
            return "gave no sign of life and was killed"
        if self.pid is None:
            return "ended before it could say who it is"
        return how_it_ended(self.status)

    def hint(self) -> str:
        """Say what may be behind the end, a sentence after a space, or nothing."""
        return killed_hint(self.status) if self.status is not None and not self.is_silent else ""


def how_it_ended(status: int) -> str:
    """Say in words what an exit code means, negative for a signal."""
    if status >= 0:
        return f"ended with exit code {status}"
    is_named = -status in set(signal.Signals)  # most real-time signals have no name
    return f"was killed by {signal.Signals(-status).name if is_named else f'signal {-status}'}"


def killed_hint(status: int) -> str:
    """Say what may be behind an end that nobody here asked for, a sentence after a space, or nothing."""
    return " Unless somebody did it by hand, memory ran out and the kernel did." if status == -signal.SIGKILL else ""


class Launcher:
    """Starts children and reaps them. One for each run, used by one thread.

    Args:
        pump: reads their output.
    """

    def __init__(self, pump: OutputPump):
        self.pump = pump
        self.orphans = Orphans()
        self.zygotes = {kind: Zygote(kind, pump, self.orphans) for kind in ("torch", "plain")}
        self.statuses: dict[int, tuple[int, float]] = {}
        """By pid the exit code and the time of death of those reaped before they were known by name, orphans of envs
        among them: with the time, a pid that is used again is not taken for the earlier process."""

    def start_zygotes(self) -> None:
        """Start the processes that fork the children; does not wait for them."""
        self.orphans.adopt()
        for zygote in self.zygotes.values():
            zygote.start()

    def check_zygotes(self) -> None:
        """Raise BootError when one has ended: what it imports is broken."""
        for zygote in self.zygotes.values():
            zygote.check(self.statuses)

    def start(self, name: str, role: str, row: int, settings: dict, log: BoundedLog, needs_torch: bool) -> Child:
        """Start a child; does not wait for it.

        Args:
            name: `actor-3`, `learner`, ...
            role: module under `rltrain.workers` with a `main`.
            row: its counter row.
            settings: what its `main` gets, JSON-able.
            log: where its output goes.
            needs_torch: fork it from the zygote that has loaded torch.
        """
        channel, theirs = Channel.pair()
        out_read, out_write = os.pipe()
        try:
            self.zygotes["torch" if needs_torch else "plain"].fork(theirs.fileno(), out_write)
        except (ChannelClosed, OSError) as error:  # no memory for another process, say: found as the child's end
            log.write(f"it could not be forked: {error or 'the zygote died at once'}\n".encode())
        os.close(out_write)
        theirs.close()
        self.pump.register(out_read, log)
        try:
            channel.send({"name": name, "role": role, "settings": settings})
        except ChannelClosed:
            pass  # it has ended already, which is found like any other end
        return Child(name, role, row, channel, log, time.monotonic())

    def reap(self, children: list[Child]) -> list[Child]:
        """Return the children that have ended since the last call."""
        while True:
            try:
                ended_one = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended_one is None:
                break
            _kill_group(ended_one.si_pid)  # before it is reaped, so that its number cannot be another's yet
            pid, status = os.waitpid(ended_one.si_pid, 0)
            self.statuses[pid] = os.waitstatus_to_exitcode(status), time.monotonic()
        ended = []
        for child in children:
            status, at_s = self.statuses.get(child.pid or 0, (0, -1.0))
            if child.is_alive and at_s >= child.started_s:
                assert child.pid is not None, "its pid is among the reaped ones"
                del self.statuses[child.pid]
                child.status = status
                ended.append(child)
        long_ago_s = time.monotonic() - _KEPT_S
        self.statuses = {pid: end for pid, end in self.statuses.items() if end[1] > long_ago_s}
        return ended

    def kill_orphans(self) -> None:
        """Kill what envs started outside their process group; only while no child lives that may need it.

        This process is the parent of what lost its own (a subreaper), and may become that of what those had started.
        Nobody is left when two looks in a row find nobody: in the middle of an exec a process shows no environment.
        """
        zygotes = {zygote.pid for zygote in self.zygotes.values()}
        deadline = time.monotonic() + _ORPHANS_S
        looks_without = 0
        while time.monotonic() < deadline and looks_without < 2:
            left = [p for p in self.orphans.alive() if p.pid not in zygotes]
            looks_without = 0 if left else looks_without + 1
            self.orphans.kill(left)
            self.reap([])
            time.sleep(_LOOK_S)
        self.reap([])

    def close(self) -> None:
        """End the zygotes."""
        for zygote in self.zygotes.values():
            zygote.close()


def _kill_group(leader: int) -> None:
    """Kill what a child's env started and left behind: each child leads a process group of its own."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def end(child: Child, number: int) -> None:
    """Send a signal to a child that may be gone."""
    if child.pid is not None and child.is_alive:
        try:
            os.kill(child.pid, number)
        except ProcessLookupError:
            pass
