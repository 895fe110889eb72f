"""Priorities that tests begin with."""

from __future__ import annotations

import numpy as np

from rltrain.replay.prioritized import Priorities

TINY = 1e-12
"""An eps that leaves a priority what the error is."""
GENERATIONS = np.zeros(1000, np.uint32)
"""Of items that never left."""


def with_priorities(priorities, alpha=1.0, normalize="batch", seed=0, places=None):
    """Items 0..n-1 with given priorities; 0 for one that is not in."""
    wanted = np.asarray(priorities, np.float32)
    made = Priorities(places or len(wanted), alpha, TINY, seed, normalize)
    items = np.flatnonzero(wanted)
    made.enter(items)
    made.update(items, GENERATIONS[: len(items)], wanted[items])
    return made
