"""Learns nothing, so that what is left is everything else: the stand-in of `rltrain bench roofline`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from rltrain.algos.train_state import TrainState
from rltrain.config.algorithms import NullConfig
from rltrain.config.schema import LearnerSection


def make_update(config: NullConfig, learner: LearnerSection) -> Null:
    """Return the function that leaves the policy as it is."""
    return Null()


class Null:
    """One call is one batch."""

    def __call__(
        self, state: TrainState, batch: dict[str, Tensor], progress: float, lanes: np.ndarray,
        num_rows: int | None = None,
    ) -> dict[str, Tensor]:
        """Count an update.

        Args:
            state: only its count of updates changes.
            batch: field name -> [T+1, B, ...], not looked at.
            progress: part of training that is done, in [0, 1].
            lanes: int64 [fragments], the lane of each block of columns.
            num_rows: valid rows, not looked at.

        Returns:
            No metrics.
        """
        state.updates += 1
        return {}
