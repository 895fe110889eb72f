"""What envs started and left behind: known by a mark in its environment, ended with its process or with the run.

Owns: the mark. Called by the launcher, by recovery and by `env_watch.py`; no process dies that does not carry it.
A mark, because not every orphan that this process is given is its own: it is a subreaper, and in a container perhaps
the first process. What was started with an environment made from nothing does not carry it and is left alone, and what
belongs to another user (a program run by sudo) cannot be ended: it is told of once.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import uuid
from collections.abc import Callable

import psutil

from rltrain.workers.child import PID_VARIABLE

log = logging.getLogger(__name__)
_RUN_VARIABLE = "RLTRAIN_RUN"
_PR_SET_CHILD_SUBREAPER = 36


class Orphans:
    """Descendants of this process that carry its mark. Made before any of them is started."""

    def __init__(self) -> None:
        self.warn: Callable[[str], None] = log.warning
        """Told of what cannot be ended."""
        self._mark = uuid.uuid4().hex
        self._others: set[psutil.Process] = set(psutil.Process().children(recursive=True))
        """Neither marked nor worth a word: they were there before. Later also what has been told of."""
        self._killed: set[psutil.Process] = set()
        """Who ends loses its environment, and the mark with it, before it is gone."""

    def adopt(self) -> None:
        """Become the parent of what a descendant leaves behind, instead of the machine's first process."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of this process and the mark, for a process to be started."""
        return {**os.environ, _RUN_VARIABLE: self._mark}

    def alive(self, starter: int | None = None) -> list[psutil.Process]:
        """Return the descendants that carry the mark and have not ended, but for those that cannot be ended.

        Args:
            starter: pid of the child that started them; None for all, those children themselves included.
        """
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                if self._is_ours(process, starter) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.AccessDenied:
                self._leave(process)
            except psutil.Error:
                pass  # it has ended
        return found

    def _is_ours(self, process: psutil.Process, starter: int | None) -> bool:
        if process in self._others or process in self._killed:
            return process in self._killed
        environment = process.environ()
        is_marked = environment.get(_RUN_VARIABLE) == self._mark
        return is_marked and (starter is None or environment.get(PID_VARIABLE) == str(starter))

    def kill(self, processes: list[psutil.Process]) -> None:
        """Kill them, as far as that is allowed."""
        for process in processes:
            try:
                process.kill()
                self._killed.add(process)
            except psutil.AccessDenied:
                self._leave(process)
            except psutil.Error:
                pass  # it has ended

    def _leave(self, process: psutil.Process) -> None:
        self._others.add(process)
        name = "?"
        with contextlib.suppress(psutil.Error):
            name = process.name()
        self.warn(
            f"process {process.pid} ({name}) belongs to another user and cannot be ended from here; if an environment "
            "started it, it may outlive the run"
        )
