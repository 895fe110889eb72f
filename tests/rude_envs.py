"""Environments that misbehave beside their steps: die between two, raise in the evaluator only, write to the screen."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rltrain.shm.mailbox import Mailboxes
from tests.moments import arm
from tests.toy_envs import Count, Hang


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


class TellEvaluation(Count):
    """Makes the file `flag` at its first step in the evaluator, where an episode never ends."""

    def __init__(self, flag: str, n: int = 20):
        self.is_evaluated = Path("/proc/self/comm").read_text().startswith("rl:evaluator")
        super().__init__(10**9 if self.is_evaluated else n)
        self.flag = Path(flag)

    def step(self, action: Any):
        """Tell."""
        if self.is_evaluated and not self.flag.exists():
            self.flag.touch()
        return super().step(action)


class Leave(Count):
    """Ends its process, by a call that no `except Exception` sees.

    Args:
        how: `abort` (`os.abort`), `exit` (`sys.exit(7)`), `_exit` (`os._exit(7)`) or `kill` (SIGKILL).
        where: `step`, `reset` or `init`.
        k: the step at which it does so.
    """

    def __init__(self, how: str, where: str = "step", k: int = 5):
        super().__init__(10)
        self.how, self.where, self.k = how, where, k
        self.num_steps = 0
        if where == "init":
            self._leave()

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Leave if asked to."""
        if self.where == "reset":
            self._leave()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """Leave if the time has come."""
        self.num_steps += 1
        if self.where == "step" and self.num_steps == self.k:
            self._leave()
        return super().step(action)

    def _leave(self) -> None:
        if self.how == "abort":
            os.abort()
        elif self.how == "exit":
            sys.exit(7)
        elif self.how == "_exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)


class TellHang(Hang):
    """As `Hang`; makes the file `flag` just before."""

    def __init__(self, flag: str, k: int, where: str):
        self.flag = Path(flag)
        super().__init__(k, where)

    def _hang(self) -> None:
        self.flag.touch()
        super()._hang()


class HangApart(Hang):
    """Never returns from a call that no run needs: `close`, or a reset with options."""

    def __init__(self, where: str):
        super().__init__(where=where)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Hang if options are given."""
        if self.where == "options" and options is not None:
            self._hang()
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        """Hang if asked to."""
        if self.where == "close":
            self._hang()


class Slow(Count):
    """Takes its time, in seconds, for each step and each reset."""

    def __init__(self, step_s: float = 0.0, reset_s: float = 0.0, n: int = 20):
        super().__init__(n)
        self.step_s, self.reset_s = step_s, reset_s

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Take its time."""
        time.sleep(self.reset_s)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """Take its time."""
        time.sleep(self.step_s)
        return super().step(action)


class SlowClose(Count):
    """Makes the file `flag` when it is closed, and takes a second for it."""

    def __init__(self, flag: str, n: int = 20):
        super().__init__(n)
        self.flag = Path(flag)

    def close(self) -> None:
        """Tell, and take long."""
        self.flag.touch()
        time.sleep(1)


class AtMoment(Count):
    """Ends its process at a moment of `tests/moments.py`, whichever process it is.

    Args:
        moment: a key of `moments.MOMENTS`, or `none`.
        once: a path; the file is made at the death, and with it there the process lives.
        cause: a key of `moments.CAUSES`.
        n: length of an episode.
    """

    def __init__(self, moment: str, once: str, cause: str = "kill", n: int = 20):
        super().__init__(n)
        arm(moment, once, cause)


class Marked(AtMoment):
    """As `AtMoment`; each of its observations is another: its process, itself, its episode, its step."""

    observation_space = spaces.Box(0, np.inf, (4,), np.float32)
    num_built = 0

    def __init__(self, moment: str, once: str, cause: str = "kill", n: int = 20):
        super().__init__(moment, once, cause, n)
        self.number, self.episode = Marked.num_built, 0
        Marked.num_built += 1

    def observe(self) -> np.ndarray:
        """Return what names this step of this env in this life of its process; whole numbers below 2**24."""
        return np.array([os.getpid(), self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin another episode."""
        self.episode += 1
        return super().reset(seed=seed, options=options)
