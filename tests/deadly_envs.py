"""An environment that has its process killed at a moment that no step of an env falls on."""

from __future__ import annotations

import os
import signal

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
