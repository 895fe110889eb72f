"""Loads on an inference server: env groups that come back when they have stepped, and requests that come by themselves.

Closed: a group asks, is answered, steps for a while, and asks again; nobody asks more often than it is answered. Open:
requests arrive at a rate, whatever the server does. Their latency counts from the moment at which they were due, also
where all groups were still waiting: else a slow server would be asked less and look fast.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rltrain.errors import RltrainError
from rltrain.shm.mailbox import Mailboxes

STALL_S = 20.0
"""No answer for so long: the load gives up."""
_NUM_DRAWS = 4096


class StallError(RltrainError):
    """The server does not answer."""

    exit_code = 5


@dataclass
class Answers:
    """What came back within the time.

    Args:
        seconds: measured.
        latencies_us: of each request that was answered, from the time it was due.
        num_late: requests that were due but not answered when the time was over.
    """

    seconds: float = 0.0
    latencies_us: list[float] = field(default_factory=list)
    num_late: int = 0

    @property
    def requests_per_s(self) -> float:
        """Requests answered a second."""
        return len(self.latencies_us) / self.seconds if self.seconds else 0.0

    def latency_us(self, q: float) -> float:
        """Return the q-quantile of the latencies, q in [0, 1]; NaN without any."""
        return float(np.quantile(self.latencies_us, q)) if self.latencies_us else float("nan")


class Load(Protocol):
    """Something that asks for a while."""

    def run(self, mailboxes: Mailboxes, seconds: float, check: Callable[[], None]) -> Answers:
        """Ask for `seconds`, then wait until nothing is open.

        Args:
            mailboxes: all lanes are used; slot i belongs to lane i.
            seconds: how long.
            check: called now and then while nothing is answered; raises where the server is dead.

        Raises:
            StallError: no answer for `STALL_S`.
        """


class Lanes:
    """Posts on lanes and finds what was answered.

    Args:
        mailboxes: all of a server's.
        check: called now and then while nothing is answered; raises where the server is dead.
    """

    def __init__(self, mailboxes: Mailboxes, check: Callable[[], None]):
        self.mailboxes, self._check = mailboxes, check
        self.due_ns: dict[int, int] = {}
        """lane -> when its open request was due."""
        self._step = 0
        self._last_ns = time.monotonic_ns()

    def post(self, lane: int, due_ns: int) -> None:
        """Ask on a lane that is free."""
        if not self.due_ns:
            self._last_ns = time.monotonic_ns()
        self._step ^= 1
        self.mailboxes.post(lane, lane, self._step, 0, None)
        self.due_ns[lane] = due_ns

    def answered(self) -> list[tuple[int, int, int]]:
        """Return (lane, when it was due, now) of what was answered since the last look.

        Raises:
            StallError: no answer for `STALL_S`.
        """
        wait_reply = self.mailboxes.wait_reply
        found = [lane for lane in self.due_ns if wait_reply(lane, 0.0)]
        now = time.monotonic_ns()
        if found or not self.due_ns:
            self._last_ns = now
        elif now - self._last_ns > 1e9:
            self._check()
            if now - self._last_ns > STALL_S * 1e9:
                raise StallError(f"the inference server did not answer for {STALL_S:g} s.")
        return [(lane, self.due_ns.pop(lane), now) for lane in found]

    def drain(self) -> None:
        """Wait for what is open."""
        while self.due_ns:
            self.answered()


@dataclass(frozen=True)
class Closed:
    """Every group steps for a while between an answer and its next request.

    Args:
        shortest_us: shortest step, in microseconds.
        longest_us: longest one; each step is drawn anew, log-uniform between both.
    """

    shortest_us: float
    longest_us: float

    def run(self, mailboxes: Mailboxes, seconds: float, check: Callable[[], None]) -> Answers:
        """See `Load`."""
        lanes, answers = Lanes(mailboxes, check), Answers()
        steps = self._steps_ns()
        number = 0
        began = time.monotonic_ns()
        end = began + int(seconds * 1e9)
        back_at = dict.fromkeys(range(mailboxes.num_lanes), began)
        while (now := time.monotonic_ns()) < end:
            for lane in [lane for lane, at in back_at.items() if at <= now]:
                lanes.post(lane, max(back_at.pop(lane), began))
            for lane, due_ns, at in lanes.answered():
                answers.latencies_us.append((at - due_ns) / 1e3)
                back_at[lane] = at + int(steps[number % _NUM_DRAWS])
                number += 1
        answers.seconds, answers.num_late = (now - began) / 1e9, len(lanes.due_ns)
        lanes.drain()
        return answers

    def _steps_ns(self) -> np.ndarray:
        low, high = np.log(max(self.shortest_us, 1e-3)), np.log(max(self.longest_us, 1e-3))
        return np.exp(np.random.default_rng(0).uniform(low, high, _NUM_DRAWS)) * 1e3


@dataclass(frozen=True)
class Open:
    """Requests arrive at random moments.

    Args:
        requests_per_s: on average; the gaps are exponential.
    """

    requests_per_s: float

    def run(self, mailboxes: Mailboxes, seconds: float, check: Callable[[], None]) -> Answers:
        """See `Load`. A request that is due while all lanes wait goes out on the next one that is free."""
        lanes, answers = Lanes(mailboxes, check), Answers()
        gaps = np.random.default_rng(0).exponential(1e9 / self.requests_per_s, _NUM_DRAWS)
        free, due, number = deque(range(mailboxes.num_lanes)), deque[int](), 0
        began = time.monotonic_ns()
        end, next_ns = began + int(seconds * 1e9), float(began)
        while (now := time.monotonic_ns()) < end:
            while next_ns <= now:
                due.append(int(next_ns))
                next_ns += gaps[number % _NUM_DRAWS]
                number += 1
            while due and free:
                lanes.post(free.popleft(), due.popleft())
            for lane, due_ns, at in lanes.answered():
                answers.latencies_us.append((at - due_ns) / 1e3)
                free.append(lane)
        answers.seconds, answers.num_late = (now - began) / 1e9, len(lanes.due_ns) + len(due)
        lanes.drain()
        return answers
