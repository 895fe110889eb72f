"""The children of a run: started together, heard, restarted, ended.

Knows nothing of training; `supervisor.py` decides what their messages and their ends mean.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rltrain.supervisor.launcher import Child, Launcher, end
from rltrain.supervisor.logs import BoundedLog, LogHandler
from rltrain.supervisor.roles import RolePlan
from rltrain.workers.channel import ChannelClosed

_BYTES_PER_MIB = 1 << 20
_FORK_S = 0.5
"""What a child that was asked for gets to say which pid is its, before it is given up."""


@dataclass
class Events:
    """What happened since the last call of `Fleet.poll`."""

    messages: list[tuple[Child, dict]] = field(default_factory=list)
    ended: list[Child] = field(default_factory=list)


class Fleet:
    """All children of one run.

    Args:
        plans: one for each process, in the order of their counter rows.
        launcher: starts them.
        max_log_mib: size of each process's log.
    """

    def __init__(self, plans: list[RolePlan], launcher: Launcher, max_log_mib: int):
        self.plans = {plan.name: plan for plan in plans}
        self.launcher = launcher
        self.children: dict[str, Child] = {}
        self._nameless: list[Child] = []
        """Ended before they said which pid is theirs, and not reported yet."""
        self.is_hopeless: Callable[[Child], bool] = lambda child: False
        """Whether a child that was told to end will not do so by itself."""
        self.logs = {name: BoundedLog(max_log_mib * _BYTES_PER_MIB) for name in (*self.plans, "supervisor")}
        self.log_handler = LogHandler(self.logs["supervisor"])
        self.logger = logging.getLogger("rltrain")
        self.logger.addHandler(self.log_handler)
        self.logger.setLevel(logging.INFO)
        self.logger.propagate = False
        self.selector = selectors.DefaultSelector()
        self.wakeup_read, self.wakeup_write = os.pipe()
        os.set_blocking(self.wakeup_read, False)
        os.set_blocking(self.wakeup_write, False)
        self.previous_wakeup = signal.set_wakeup_fd(self.wakeup_write, warn_on_full_buffer=False)
        self.previous_child_handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # so that a death wakes `poll`
        self.selector.register(self.wakeup_read, selectors.EVENT_READ, None)
        self.selector.register(launcher.pump, selectors.EVENT_READ, None)

    # -- starting ---------------------------------------------------------------------------------------------

    def start(self, name: str, life: int = 0) -> Child:
        """Start the process of this name; an actor is told how many have had its place since the run began."""
        plan = self.plans[name]
        if plan.role == "actor":
            plan = replace(plan, settings={**plan.settings, "life": life})
        child = self.launcher.start(name, plan.role, plan.row, plan.settings, self.logs[name], plan.needs_torch)
        child.life = life
        self.children[name] = child
        self.selector.register(child.channel, selectors.EVENT_READ, child)
        return child

    def open_logs(self, folder: Path) -> None:
        """Write the logs to files from now on, what they hold included."""
        for name, log in self.logs.items():
            log.open(folder / f"{name}.log")

    # -- hearing ----------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Events:
        """Wait for messages, output, deaths or a signal, at most `timeout_s`, and move output into the logs."""
        events = Events()
        for key, _ in self.selector.select(timeout_s):
            if isinstance(key.data, Child):
                self._hear(key.data, events)
        try:
            os.read(self.wakeup_read, 4096)
        except BlockingIOError:
            pass
        self.launcher.pump.poll()
        ended = self.launcher.reap(list(self.children.values()))
        if ended:
            self.launcher.pump.poll()  # what they wrote last
        ended += self._nameless
        self._nameless = []
        for child in ended:
            self._hear(child, events)  # what it said last
            events.ended.append(child)
            self._forget(child)
        return events

    def _hear(self, child: Child, events: Events) -> None:
        try:
            while (received := child.channel.recv(0)) is not None:
                message, fds = received
                for fd in fds:
                    os.close(fd)
                if "pid" in message:
                    child.pid = message["pid"]
                elif "error" in message:
                    child.error = message["error"]
                else:
                    events.messages.append((child, message))
        except (ChannelClosed, ValueError, OSError):
            self._forget(child)

    def _forget(self, child: Child) -> None:
        if child.channel.fileno() >= 0:
            self.selector.unregister(child.channel)
            child.channel.close()
            if child.pid is None:
                child.status = 1  # ended before it could say who it is
                self._nameless.append(child)

    def send(self, child: Child, message: dict, fds: tuple[int, ...] = ()) -> None:
        """Send to a child; one that is gone is found by `poll`."""
        try:
            if child.channel.fileno() >= 0:
                child.channel.send(message, fds)
        except ChannelClosed:
            pass

    # -- ending -----------------------------------------------------------------------------------------------

    def alive(self) -> list[Child]:
        """Return the children that have not ended."""
        return [child for child in self.children.values() if child.is_alive]

    def wait_all(self, timeout_s: float, is_urgent: Callable[[], bool]) -> list[tuple[Child, dict]]:
        """Wait until every child has ended, then kill what is left; those without hope are killed at the start.

        Args:
            timeout_s: longest wait.
            is_urgent: whether to wait no longer; looked at after each message, death or signal.

        Returns:
            The messages that still came.
        """
        messages = []
        for child in filter(self.is_hopeless, self.alive()):
            self.kill(child)
        deadline = time.monotonic() + timeout_s
        while self.alive() and not is_urgent() and (left := deadline - time.monotonic()) > 0:
            messages += self.poll(min(left, 0.5)).messages
        self.kill_all()
        return messages

    def kill(self, child: Child) -> None:
        """Kill a child; one that was never forked is given up, and the zygote that should have done it goes too."""
        if child.pid is not None:
            end(child, signal.SIGKILL)
        elif child.is_alive:
            needs_torch = self.plans[child.name].needs_torch
            self.launcher.zygotes["torch" if needs_torch else "plain"].kill()
            self._forget(child)

    def kill_all(self) -> None:
        """Kill every child that is left and what envs started and left behind, and reap them."""
        began = time.monotonic()
        while self.alive() and time.monotonic() < began + 5:
            for child in self.alive():
                if child.pid is not None or time.monotonic() > began + _FORK_S:
                    self.kill(child)
            self.poll(0.1)
        self.launcher.kill_orphans()

    def close(self) -> None:
        """End everything, give the signal dispositions back, close the logs."""
        self.launcher.close()  # first: with the zygote go the children that it has not forked yet
        self.kill_all()
        self.launcher.pump.close()
        self.selector.close()
        signal.set_wakeup_fd(self.previous_wakeup)
        signal.signal(signal.SIGCHLD, self.previous_child_handler)
        os.close(self.wakeup_read)
        os.close(self.wakeup_write)
        self.logger.removeHandler(self.log_handler)
        for log in self.logs.values():
            log.close()
