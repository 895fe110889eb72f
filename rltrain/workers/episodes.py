"""The episodes learned from: mean of return and length over the last ones, in their order, and those still open.

Owns: nothing shared; written and read by the learner alone, the last ones kept in its checkpoints.
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


class OpenEpisodes:
    """How long the episodes are that have not ended, as far as learned from since this process started.

    Args:
        num_lanes: env groups in the whole run.
        num_envs: envs of a group.
    """

    def __init__(self, num_lanes: int, num_envs: int):
        self._lengths = np.zeros((num_lanes, num_envs), np.int64)

    def add(self, lanes: np.ndarray, has_ended: np.ndarray, open_steps: np.ndarray) -> None:
        """Add the env steps of one batch.

        Args:
            lanes: int64 [fragments].
            has_ended: bool [fragments x N], whether an episode of the column ended.
            open_steps: int64 [fragments x N], env steps since then; where none ended, all of the column.
        """
        shape = (len(lanes), self._lengths.shape[1])
        for lane, ended, steps in zip(lanes, has_ended.reshape(shape), open_steps.reshape(shape), strict=True):
            self._lengths[lane] = np.where(ended, 0, self._lengths[lane]) + steps

    def forget(self, lane: int) -> None:
        """Begin anew with the envs of a lane."""
        self._lengths[lane] = 0

    @property
    def longest(self) -> int:
        """Env steps of the longest one."""
        return int(self._lengths.max())


def open_steps(ended: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each column whether an episode ended in it, and how many env steps came after the last end.

    Args:
        ended: bool [T, B].
        valid: bool [T, B], False in the row after an end, which is the reset.
    """
    has_ended: np.ndarray = np.logical_or.reduce(ended, axis=0)
    num_after = ended[::-1].argmax(axis=0)
    return has_ended, np.where(has_ended, np.maximum(num_after - 1, 0), valid.sum(axis=0))
