"""The running mean of return and length over the last episodes, in the order in which they were learned from.

Owns: nothing shared; written and read by the learner alone, kept in its checkpoints.
"""

from __future__ import annotations

from collections import deque

import numpy as np


class EpisodeWindow:
    """The last `size` episodes.

    Args:
        size: `run.target_window`, in episodes.
    """

    def __init__(self, size: int):
        self.size = size
        self.returns: deque[float] = deque(maxlen=size)
        self.lengths: deque[int] = deque(maxlen=size)
        self.num_episodes = 0

    def add(self, returns: np.ndarray, lengths: np.ndarray) -> None:
        """Add the episodes of one batch, oldest first. Returns float64 and lengths int64, both [episodes]."""
        self.num_episodes += len(returns)
        self.returns.extend(returns[-self.size :].tolist())
        self.lengths.extend(lengths[-self.size :].tolist())

    @property
    def is_full(self) -> bool:
        """Whether as many episodes have ended as the window holds."""
        return len(self.returns) == self.size

    @property
    def return_mean(self) -> float:
        """Mean undiscounted raw return; NaN before the first episode has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else float("nan")

    @property
    def length_mean(self) -> float:
        """Mean length in env steps; NaN before the first episode has ended."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else float("nan")

    def state_dict(self) -> dict:
        """Return what a checkpoint keeps."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "num_episodes": self.num_episodes}

    def load_state_dict(self, state: dict) -> None:
        """Restore from `state_dict` output."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.num_episodes = state["num_episodes"]
