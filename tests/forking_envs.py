"""Environments that start other processes: programs, some in sessions of their own, and copies of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.toy_envs import Count, Hang


class WithChild(Count):
    """Starts a program of its own, and prints its pid."""

    def __init__(self, n: int = 20):
        super().__init__(n)
        print(subprocess.Popen(["sleep", "300"]).pid, flush=True)


class WithDaemon(Count):
    """Starts a program in a session of its own, and prints its pid."""

    def __init__(self, n: int = 20):
        super().__init__(n)
        print(subprocess.Popen(["sleep", "300"], start_new_session=True).pid, flush=True)


class ForkAndReturn(Count):
    """Forks at step 60 of its life without a look at which of the two it is afterwards.

    Writes into the file `told`, if there is one, which process makes a step.
    """

    def __init__(self, told: str | None = None, n: int = 20):
        super().__init__(n)
        self.told, self.num_steps = told, 0

    def step(self, action: Any):
        """Fork if the time has come."""
        if self.told is not None:
            with open(self.told, "a") as told:
                told.write(f"stepped {os.getpid()}\n")
        self.num_steps += 1
        if self.num_steps == 60:
            os.fork()
        return super().step(action)


class ForkAndExit(Count):
    """Forks at step 30 of its life, and the copy exits as one does that knows nothing of where it is.

    Writes into the file `told` which process builds one and which closes one.
    """

    def __init__(self, told: str, n: int = 20):
        super().__init__(n)
        self.told, self.num_steps = told, 0
        self._tell("built")

    def _tell(self, what: str) -> None:
        with open(self.told, "a") as told:
            told.write(f"{what} {os.getpid()}\n")

    def step(self, action: Any):
        """Fork if the time has come."""
        self.num_steps += 1
        if self.num_steps == 30:
            copy = os.fork()
            if copy == 0:
                sys.exit()
            os.waitpid(copy, 0)
        return super().step(action)

    def close(self) -> None:
        """Tell."""
        self._tell("closed")


class HangWithDaemon(Hang):
    """Starts a program in a session of its own whose parent has ended, prints its pid, and hangs as `Hang` does."""

    def __init__(self, k: int = 20, where: str = "step"):
        script = "import subprocess as s; print(s.Popen(['sleep', '300'], start_new_session=True).pid, flush=True)"
        subprocess.run([sys.executable, "-c", script], check=True)
        super().__init__(k, where)
