"""Silent processes: found by the age of their heartbeat, asked where they are, killed.

Owns: which processes were asked for their stack. Called by the supervisor once a second.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from rltrain.config.schema import SupervisionSection
from rltrain.shm.counters import CounterRow
from rltrain.supervisor.launcher import Child, end
from rltrain.supervisor.logs import TAIL_LINES
from rltrain.supervisor.stacks import current_calls
from rltrain.telemetry.verdict import NOTICED_S

HELD_S = 2.0
"""How long the learner may be held by SIGSTOP, as it may be let go, once the run is to end."""
_LEAST_SILENCE_S = 1.0
"""Of a process that waits in vain: those that idle give a sign five times a second."""
SHOWN_CALLS = 4
"""Enough to reach the env's own code from within a wait of the standard library."""


class Heartbeats:
    """Looks at every process's heartbeat.

    Args:
        limits: `supervision` of the configuration.
        rows: counter row of each process, by name.
        warn: told of each process that is killed.
        kill: kills a child, also one that was never forked.
    """

    def __init__(
        self, limits: SupervisionSection, rows: dict[str, CounterRow], warn: Callable[[str], None],
        kill: Callable[[Child], None],
    ):
        self.limits, self.rows, self.warn, self.kill = limits, rows, warn, kill
        self._asked_for_stack: dict[str, int] = {}
        """Name -> how many lines its log had then."""
        self._noticed: dict[str, Child] = {}
        """Name -> the process that was told of as silent: once for each, as slow steps may be its nature."""
        self._held_at_s: float | None = None

    def check(self, children: list[Child], is_learner_exempt: bool) -> None:
        """Kill what gave no sign of life for too long; its end is then dealt with like any other.

        Args:
            children: those that are alive.
            is_learner_exempt: before its first update the learner may be compiling, without a heartbeat.
        """
        for child in children:
            if not child.is_ready:
                if time.monotonic() - child.started_s > self.limits.boot_timeout_s:
                    child.is_silent = True
                    self.kill(child)
            elif not (child.role == "learner" and is_learner_exempt):
                self._check(child, self.rows[child.name])

    def is_hopeless(self, child: Child) -> bool:
        """Whether a child that was told to end will not: it still starts, its env hangs, or it is stopped.

        Half of the grace is silence enough: for as long the learner waits for it once the run is to end. The learner
        itself may have much to finish.
        """
        is_silent = self.rows[child.name].heartbeat_age_s > max(_LEAST_SILENCE_S, self.limits.shutdown_grace_s / 2)
        return child.role != "learner" and (is_silent or not child.is_ready)

    def end_stopped(self, learner: Child) -> None:
        """Kill the learner, for whose checkpoint a run that is to end waits, where it is held by SIGSTOP.

        One that merely computes is waited for.
        """
        if learner.pid is None or not learner.is_alive or not _is_held(learner.pid):
            self._held_at_s = None
        elif self._held_at_s is None:
            self._held_at_s = time.monotonic()
        elif time.monotonic() - self._held_at_s > HELD_S:
            learner.is_silent = True
            self.warn("learner is held by SIGSTOP and cannot write a checkpoint: it is killed")
            self.kill(learner)

    def _check(self, child: Child, row: CounterRow) -> None:
        age = row.heartbeat_age_s
        limit_s = self.limits.heartbeat_timeout_s
        is_new = self._noticed.get(child.name) is not child  # told of at half of the limit where that is less
        if age <= (min(NOTICED_S, limit_s / 2) if is_new else limit_s):
            self._asked_for_stack.pop(child.name, None)
        elif child.name not in self._asked_for_stack:
            self._asked_for_stack[child.name] = child.log.num_lines
            end(child, signal.SIGUSR1)  # its stack goes into its log, which is read at the next look
        else:
            num_new = child.log.num_lines - self._asked_for_stack.pop(child.name)
            calls = current_calls(child.log.tail(min(TAIL_LINES, num_new)))
            where = " | ".join(calls[:SHOWN_CALLS]) or "it does not even say where it is, as one that was stopped"
            silence = f"{child.name} silent for {age:.0f} s in state {row.state}"
            if age <= limit_s:
                self._noticed[child.name] = child
                self.warn(f"{silence}, killed at {limit_s:g} s (supervision.heartbeat_timeout_s): {where}")
            else:
                child.is_silent = True
                self.warn(f"{silence}: {where}")
                self.kill(child)


def _is_held(pid: int) -> bool:
    """Whether a process is stopped by a signal; one under a debugger is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"
