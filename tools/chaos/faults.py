"""The faults of a chaos run, and where each one strikes."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import psutil
from marked import ENV_FAULTS

FULL_S = 3.0
"""How long the disk stays full."""
SHORT_STOP_S = 1.0
PAGE = bytes(2**16)


class Faults:
    """Strikes a run with one fault at a time, chosen by a seed.

    Args:
        pid: of the supervisor.
        disk: the small disk with the run folder; `fills` says whether it may be filled.
        tokens: folder where envs look for faults laid out for them.
        random: chooses.
        fills: whether `disk` is a disk of its own.
    """

    def __init__(self, pid: int, disk: Path, tokens: Path, random: Random, fills: bool):
        self.supervisor, self.disk, self.tokens, self.random = psutil.Process(pid), disk, tokens, random
        self.kinds: dict[str, Callable[[], str | None]] = {
            **{f"kill {role}": partial(self._signal, role, signal.SIGKILL)
               for role in ("actor", "inference", "learner", "evaluator", "zygote")},
            **{f"stop {role}": partial(self._stop, role) for role in ("actor", "inference", "learner", "evaluator")},
            "hang actor": partial(self._signal, "actor", signal.SIGSTOP),
            "hang inference": partial(self._signal, "inference", signal.SIGSTOP),
            **{f"env: {fault}": partial(self._lay_out, fault) for fault in ENV_FAULTS},
            "torn checkpoint": self._tear,
        }  # fmt: skip
        if fills:
            self.kinds["full disk"] = self._fill

    def strike(self) -> tuple[str, str | None]:
        """Cause a fault; returns its kind and what it struck, None where there was nothing to strike."""
        kind = self.random.choice(list(self.kinds))
        try:
            return kind, self.kinds[kind]()
        except psutil.NoSuchProcess:
            return kind, None

    def processes(self) -> dict[str, psutil.Process]:
        """Return the run's processes by name, as they are now."""
        return {child.name().removeprefix("rl:"): child for child in self.supervisor.children(recursive=True)}

    def _choose(self, role: str) -> tuple[str, psutil.Process] | None:
        found = [(name, process) for name, process in sorted(self.processes().items()) if name.startswith(role)]
        return self.random.choice(found) if found else None

    def _signal(self, role: str, number: signal.Signals) -> str | None:
        chosen = self._choose(role)
        if chosen is None:
            return None
        chosen[1].send_signal(number)
        return f"{chosen[0]} (pid {chosen[1].pid})"

    def _stop(self, role: str) -> str | None:
        chosen = self._choose(role)
        if chosen is None:
            return None
        chosen[1].suspend()
        time.sleep(SHORT_STOP_S)
        chosen[1].resume()
        return f"{chosen[0]} for {SHORT_STOP_S:g} s"

    def _lay_out(self, fault: str) -> str:
        (self.tokens / fault).touch()
        return "the next env that looks"

    def _tear(self) -> str | None:
        """Cut the newest checkpoint in half, as a disk that lied about a write would leave it."""
        found = sorted(self.disk.glob("*/checkpoints/checkpoint-*.pt"))
        if len(found) < 2:
            return None
        os.truncate(found[-1], found[-1].stat().st_size // 2)
        return found[-1].name

    def _fill(self) -> str:
        filler = self.disk / "filler"
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(PAGE)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(FULL_S)
        filler.unlink()
        return f"for {FULL_S:g} s"
