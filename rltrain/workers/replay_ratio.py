"""The replay-ratio limiter: how many updates the env steps collected so far pay for.

Owns: two counts, kept in the learner's checkpoints. Called by `replay_training.py`; pure.
Written by, read by: the learner alone.
Blocks on, unblocked by: nothing. Who waits follows from it: the learner, when it is owed no update; the actors, when
the ring is full because the learner still works on the updates it owes.
If the peer dies: there is none.
"""

from __future__ import annotations

import math


class ReplayRatio:
    """Counts env steps in and updates out.

    Env steps that come before the replay has been filled to `learning_starts` pay for nothing: there is no burst of
    updates when learning begins, or goes on after a resume with an empty replay.

    Args:
        updates_per_env_step: the ratio, > 0.
        learning_starts: env steps that fill the replay before the first update.
        ahead_env_steps: how many env steps' worth of updates may be taken on credit.
    """

    def __init__(self, updates_per_env_step: float, learning_starts: int, ahead_env_steps: int = 0):
        self.updates_per_env_step, self.learning_starts = updates_per_env_step, learning_starts
        self.ahead = ahead_env_steps * updates_per_env_step
        self.filled = 0
        """Env steps that came into the replay."""
        self.owed = 0.0
        """Updates paid for and not made; down to `-ahead` where they were made on credit."""

    @property
    def is_filling(self) -> bool:
        """Whether the replay still holds too little to learn from."""
        return self.filled < self.learning_starts

    def collected(self, num_env_steps: int, is_drawable: bool = True) -> None:
        """Note env steps that came into the replay; while none of it may be drawn yet, they pay for nothing either."""
        self.filled += num_env_steps
        paying = min(num_env_steps, self.filled - self.learning_starts) if is_drawable else 0
        self.owed += max(0, paying) * self.updates_per_env_step

    def updated(self) -> None:
        """Note one update."""
        self.owed -= 1

    @property
    def num_due(self) -> int:
        """Updates to make now."""
        return max(0, math.floor(self.owed + 1e-9))  # a third and a third and a third is one

    @property
    def num_on_credit(self) -> int:
        """Updates that may be made now if no env steps come."""
        return 0 if self.is_filling else max(0, math.floor(self.owed + self.ahead + 1e-9))

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"filled": float(self.filled), "owed": self.owed}

    def load_state_dict(self, state: dict[str, float], is_replay_empty: bool) -> None:
        """Go on from `state_dict` output.

        Args:
            state: of the run that is resumed.
            is_replay_empty: the transitions were not saved, so they have to be collected first.
        """
        self.filled = 0 if is_replay_empty else int(state["filled"])
        self.owed = min(state["owed"], 0.0 if is_replay_empty else math.inf)
