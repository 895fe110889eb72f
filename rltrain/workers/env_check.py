"""The process in which `rltrain doctor` checks an environment: whatever the environment does to it, doctor goes on.

Owns: the environment, as an actor would.
Written by: this process, a message for each finding and before each call of the environment.
Read by: `supervisor/env_watch.py`, which ends it when it falls silent.
Blocks on: the environment's own code. Unblocked by: nobody; it is killed.
If the peer dies: the kernel kills this process.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import signal
import sys
import time
from dataclasses import asdict

from rltrain.envs import forked
from rltrain.envs.contract import check
from rltrain.envs.report import NOTE_EVERY_S, Call, Finding
from rltrain.workers.channel import Channel

_FORKS = Finding(
    "warning", "forking", "The environment forked its process, and the copy came back from it as if it were the "
    "process itself. A run ends such a copy at once, as was done here, so what it was made for does not happen. Have a "
    "forked child end by itself, with os._exit() or by multiprocessing.",
)  # fmt: skip


class _Notes:
    """Tells the peer what is asked of the environment next."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._last: Call | None = None
        self._sent_s = 0.0

    def __call__(self, call: Call) -> None:
        forked.end_copy()
        now_s = time.monotonic()
        if call != self._last or now_s - self._sent_s >= NOTE_EVERY_S:
            self._channel.send({"call": call})
            self._last, self._sent_s = call, now_s


def main(channel: Channel, settings: dict, fds: list[int]) -> None:
    """Check the environment `settings["env"]` and send each finding; stacks are written to the descriptor received."""
    (stacks_fd,) = fds
    faulthandler.enable(file=stacks_fd)
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)
    logging.getLogger().setLevel(logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what an env prints before it crashes is to be seen
    has_told = False
    for finding in check(settings["env"], _Notes(channel)):
        forked.end_copy()
        channel.send({"finding": asdict(finding)})
        if forked.has_ended_copies() and not has_told:
            has_told = True
            channel.send({"finding": asdict(_FORKS)})
    forked.end_copy()
    channel.send({"is_done": True})
