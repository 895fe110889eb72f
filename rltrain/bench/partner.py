"""A second process on a bench's arena, which carries out orders, one at a time.

The bench's own process is the other side. Orders and answers are lines of JSON over pipes; what is measured goes
through the arena alone. A module that takes part has `partner(arena, settings)`, which returns what answers an order.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from rltrain.config.machine import usable_cores
from rltrain.errors import RltrainError
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.workers.child import die_with, ignore_ending_signals

Answer = Callable[[dict[str, Any]], Mapping[str, Any]]
BOOT_S = 60.0
"""Longest start of a partner: one that imports torch on a busy machine takes some seconds."""
_LOOK_S = 0.2
_CLOSE_S = 5.0
_TAIL_LINES = 12


class PartnerError(RltrainError):
    """The other process of a bench died or did not answer."""

    exit_code = 5


class Partner:
    """The bench's end of the other process; a context manager that ends it.

    Args:
        module: full name of a module with `partner(arena, settings)`.
        arena: what both work on.
        settings: handed to it, JSON-able.

    Raises:
        PartnerError: it did not start; the message has what it wrote.
    """

    def __init__(self, module: str, arena: Arena, settings: Mapping[str, Any]):
        self.module = module
        self._errors = tempfile.TemporaryFile("w+")
        # One thread for each operation, as the processes of a run have: the cores belong to other processes.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        content = json.dumps({"layout": arena.layout.to_dict(), "settings": dict(settings)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rltrain.bench.partner", module, str(arena.fd), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, pass_fds=[arena.fd],
            env=environment,
        )  # fmt: skip
        try:
            self._send(content)
            self.answer(BOOT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Partner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, **order: Any) -> None:
        """Give an order; `answer` waits for what came of it."""
        self._send(json.dumps(order))

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to the last order.

        Raises:
            PartnerError: the process ended, or the time was over.
        """
        output = self._process.stdout
        assert output is not None, "started with a pipe"
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not selector.select(_LOOK_S):
                if time.monotonic() > deadline:
                    raise PartnerError(f"{self.module} did not answer within {timeout_s:g} s; the bench gives up.")
        line = output.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def check(self) -> None:
        """Find out whether the process lives.

        Raises:
            PartnerError: it does not.
        """
        if self._process.poll() is not None:
            self._fail()

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_CLOSE_S)
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def _fail(self) -> None:
        code = self._process.wait(_CLOSE_S)
        self._errors.seek(0)
        tail = "\n".join(self._errors.read().splitlines()[-_TAIL_LINES:])
        raise PartnerError(f"{self.module}, the bench's other process, ended with exit code {code}:\n{tail}")


def note_on_cores(num_busy: int) -> str | None:
    """Return a note where fewer cores are usable than processes are busy; None where there are enough."""
    cores = usable_cores()
    if cores >= num_busy:
        return None
    return f"{num_busy} processes are busy at once on {cores} usable core(s): they take turns, which lowers all figures"


def main() -> None:
    """Carry out the orders that come by standard input until it ends."""
    module, fd, parent_pid = sys.argv[1:]
    die_with(int(parent_pid))
    ignore_ending_signals()  # Ctrl-C is the bench's, which ends this process
    content = json.loads(sys.stdin.readline())
    arena = Arena.attach(int(fd), ArenaLayout.from_dict(content["layout"]))
    answer: Answer = importlib.import_module(module).partner(arena, content["settings"])
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
