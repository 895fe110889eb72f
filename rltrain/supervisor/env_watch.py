"""The check of an environment in a process of its own, watched: it may crash, exit or hang.

Owns: that process, all that it starts, and the memory its stacks are written to. Called by `rltrain doctor`.
If the process dies or falls silent: a finding says how, and where in the environment's code; then it is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from rltrain.config.schema import Config, SupervisionSection
from rltrain.envs.report import NOTE_EVERY_S, Call, Finding
from rltrain.errors import Interrupted
from rltrain.supervisor.launcher import how_it_ended, killed_hint
from rltrain.supervisor.orphans import Orphans
from rltrain.supervisor.stacks import users_place
from rltrain.supervisor.stop_signals import StopSignals
from rltrain.supervisor.zygotes import python_command
from rltrain.workers.channel import Channel, ChannelClosed

_POLL_S = 0.1
_STACK_S = 0.5
"""What the process gets to write its stack."""
_KILL_S = 5.0
"""Longest wait until what was killed is gone; only a call into a driver or a lost disk takes so long."""

_START_S = 120.0
"""Longest time until the process asks the environment for anything: it imports rltrain's own code meanwhile."""


@dataclass(frozen=True)
class _Asked:
    """What is known of a call of the environment."""

    topic: str
    """Of a finding about it."""
    doing: str
    """Words after `while it was`."""
    option: str
    """The option of `supervision` that limits it."""
    is_in_training: bool = True
    """Whether a run makes such a call and needs it to come back."""


_CALLS: dict[Call, _Asked] = {
    "build": _Asked("build", "imported and built", "boot_timeout_s"),
    "first reset": _Asked("stepping", "reset for the first time", "boot_timeout_s"),
    "reset": _Asked("stepping", "reset", "heartbeat_timeout_s"),
    "step": _Asked("stepping", "stepped", "heartbeat_timeout_s"),
    "close": _Asked("closing", "closed", "heartbeat_timeout_s", False),
    "gymnasium's checker": _Asked("gymnasium", "looked over by gymnasium's checker", "boot_timeout_s", False),
    "checker's reset": _Asked("gymnasium", "reset by gymnasium's checker", "boot_timeout_s", False),
    "checker's step": _Asked("gymnasium", "stepped by gymnasium's checker", "heartbeat_timeout_s", False),
}
_NOT_IN_TRAINING = "Training does not depend on that, but what was still to be checked has not been."


def check_apart(config: Config) -> Generator[Finding]:
    """Check the environment of a configuration in a process of its own, and yield each finding when it is made.

    The last one may be that the process died or did not come back from a call.

    Raises:
        Interrupted: a signal asked to stop; the message says where the environment was.

    Concurrency: for the main thread, as it catches signals. To be closed, which leaves no process behind.
    """
    signals = StopSignals()
    try:
        watched = _Watched(config)
        try:
            yield from watched.findings(signals)
        finally:
            watched.end()
    finally:
        signals.release()


class _Watched:
    """The process that checks, from its start on."""

    def __init__(self, config: Config):
        self.limits: SupervisionSection = config.supervision
        self.call: Call | None = None
        """What it asked of the environment last."""
        self.error: dict[str, str] | None = None
        """What it reported before it ended."""
        self._orphans = Orphans()
        self._orphans.adopt()
        self._stacks_fd = os.memfd_create("stacks")
        self.channel, theirs = Channel.pair()
        # Its own group: a terminal's Ctrl-C is for this process, which asks the other where it is.
        self.process = subprocess.Popen(
            python_command(
                "from rltrain.workers.child import run_child; run_child(int(sys.argv[2]), int(sys.argv[3]))",
                str(theirs.fileno()), str(os.getpid()),
            ),
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0, env=self._orphans.environment,
        )  # fmt: skip
        theirs.close()
        settings = {"env": config.env.model_dump(mode="json"), "code_dir": config.run.code_dir}
        with contextlib.suppress(ChannelClosed):  # it has ended already, which is found like any other end
            self.channel.send({"name": "env-check", "role": "env_check", "settings": settings}, (self._stacks_fd,))

    def findings(self, signals: StopSignals) -> Iterator[Finding]:
        """Yield what it sends, until it is done, has ended or has been silent for too long."""
        heard_s = time.monotonic()
        while True:
            has_ended = self.process.poll() is not None  # looked at first: what it sent before is still read
            try:
                received = self.channel.recv(0 if has_ended or signals else _POLL_S)
            except ChannelClosed:
                received, has_ended = None, self._wait()
            if received is not None:
                heard_s, message = time.monotonic(), received[0]
                if "is_done" in message:
                    self._wait(_KILL_S)  # it writes out what the env printed
                    return
                yield from self._hear(message)
            elif signals:  # only now that it is known what was called last
                raise self._interrupted(signals)
            elif has_ended:
                yield self._death()
                return
            elif time.monotonic() - heard_s > self._limit_s + NOTE_EVERY_S:
                yield self._hang()
                return

    def end(self) -> None:
        """Kill it and all that it has started, also what left its group or has lost its parent."""
        deadline = time.monotonic() + _KILL_S
        while (left := self._orphans.alive()) and time.monotonic() < deadline:
            self._orphans.kill(left)
            psutil.wait_procs([p for p in left if p.pid != self.process.pid], timeout=_POLL_S)
            self._wait()
        self.channel.close()
        os.close(self._stacks_fd)

    def _wait(self, limit_s: float = _POLL_S) -> bool:
        """Whether it has ended, now or within the limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
        return self.process.returncode is not None

    @property
    def _asked(self) -> _Asked:
        return _CALLS[self.call or "build"]

    @property
    def _limit_s(self) -> float:
        return _START_S if self.call is None else getattr(self.limits, self._asked.option)

    def _hear(self, message: dict[str, Any]) -> Iterator[Finding]:
        if "finding" in message:
            yield Finding(**message["finding"])
        elif "call" in message:
            self.call = message["call"]
        elif "error" in message:
            self.error = message["error"]

    def _death(self) -> Finding:
        asked, status, told = self._asked, self.process.returncode, ""
        advice = (
            "An environment may raise an exception, but not end its process: correct what does so, in it or in a "
            "native library it calls."
        )
        if self.error is not None:
            told = f" by {': '.join(part for part in (self.error['kind'], self.error['message']) if part)}"
            advice = "Its traceback is on standard error."
        what = f"The process {how_it_ended(status)}{told} while it was {asked.doing}{self._place()}"
        if not asked.is_in_training:
            return Finding("warning", asked.topic, f"{what}. {_NOT_IN_TRAINING}{killed_hint(status)} {advice}")
        text = f"{what}; training would lose an actor there.{killed_hint(status)} {advice}"
        return Finding("error", asked.topic, text)

    def _hang(self) -> Finding:
        asked = self._asked
        place = self._place_now() or "; it does not even say where it is, as a process that was stopped"
        limit = f"{self._limit_s:g} s" if self.call is None else f"supervision.{asked.option} = {self._limit_s:g} s"
        what = f"No return within {limit} while it was {asked.doing}{place}."
        if not asked.is_in_training:
            return Finding("warning", asked.topic, f"{what} {_NOT_IN_TRAINING}")
        advice = "A run would end its process there. Correct what it waits for, or raise the limit if it is only slow."
        return Finding("error", asked.topic, f"{what} {advice}")

    def _interrupted(self, signals: StopSignals) -> Interrupted:
        return Interrupted(
            f"Stopped while the environment was {self._asked.doing}{self._place_now()}; the check is not complete.",
            signals.first,
        )

    def _place_now(self) -> str:
        """Ask the process where it is."""
        before = self._stacks()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        last = before
        while time.monotonic() < deadline and ((now := self._stacks()) == before or now != last):
            last = now
            time.sleep(_POLL_S / 5)
        return self._place() if last != before else ""

    def _place(self) -> str:
        place = users_place(self._stacks().splitlines())
        return f", at {place}" if place else ""

    def _stacks(self) -> str:
        return os.pread(self._stacks_fd, 1 << 20, 0).decode(errors="replace")
