"""Environments that misbehave beside their steps: die between two, raise in the evaluator only, write to the screen."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rltrain.shm.mailbox import Mailboxes
from tests.toy_envs import Count


class DieInGap(Count):
    """Has its process killed once after a lane's fragment was published and before its progress is noted.

    Args:
        once: a path; the file is made at the death, and with it there the process lives.
        lane: the lane.
        fragment_index: the progress that is not noted.
        n: length of an episode.
    """

    def __init__(self, once: str, lane: int, fragment_index: int, n: int = 20):
        super().__init__(n)
        note = Mailboxes.set_progress

        def set_progress(mailboxes: Mailboxes, of_lane: int, progress: int) -> None:
            if (of_lane, progress) == (lane, fragment_index) and not os.path.exists(once):
                with open(once, "x"):
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            note(mailboxes, of_lane, progress)

        if not os.path.exists(once):
            Mailboxes.set_progress = set_progress


class BoomInEvaluation(Count):
    """Raises at its step 5 where the process is the evaluator."""

    def __init__(self, n: int = 20):
        super().__init__(n)
        self.is_evaluated = Path("/proc/self/comm").read_text().startswith("rl:evaluator")
        self.num_steps = 0

    def step(self, action: Any):
        """Raise if the time has come."""
        self.num_steps += 1
        if self.is_evaluated and self.num_steps == 5:
            raise ValueError("boom")
        return super().step(action)


class Chatty(Count):
    """Each step writes a line by `print` and one to the file descriptors 1 and 2 each."""

    def step(self, action: Any):
        """Write, then count."""
        print("chatty by print")
        sys.stdout.flush()
        os.write(1, b"chatty to descriptor 1\n")
        os.write(2, b"chatty to descriptor 2\n")
        return super().step(action)


class Paced(Chatty):
    """Takes 2 ms for a step and writes a byte while the file `flag` is there."""

    def __init__(self, flag: str, n: int = 20):
        super().__init__(n)
        self.flag = flag

    def step(self, action: Any):
        """Take its time, then write and count."""
        with contextlib.suppress(FileNotFoundError):
            flag = os.open(self.flag, os.O_WRONLY | os.O_APPEND)
            os.write(flag, b".")
            os.close(flag)
            time.sleep(0.002)
        return super().step(action)


class Refuse(Count):
    """Cannot be built while the file `flag` is there."""

    def __init__(self, flag: str, n: int = 20):
        super().__init__(n)
        if os.path.exists(flag):
            raise RuntimeError("the licence is used up")


class BoomEarly(Count):
    """Raises at its step 5, while the evaluator still builds its own for three seconds."""

    def __init__(self, n: int = 20):
        super().__init__(n)
        if Path("/proc/self/comm").read_text().startswith("rl:evaluator"):
            time.sleep(3)
        self.num_steps = 0

    def step(self, action: Any):
        """Raise if the time has come."""
        self.num_steps += 1
        if self.num_steps == 5:
            raise ValueError("boom")
        return super().step(action)
