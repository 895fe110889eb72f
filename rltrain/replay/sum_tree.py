"""The sum tree: leaves with a mass each, found by a share of the total mass."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rltrain import native
from rltrain.native import ffi, lib

_WIDTH = 8
LARGEST_MASS = 2.0**500


class SumTree:
    """A tree of sums over non-negative masses; all of them are 0 at first.

    An inner node is always the sum of its children as they are, so there is no drift, however often leaves change.
    10.3 bytes of memory for each leaf; 1e7 leaves are 9 levels.

    Args:
        num_leaves: at least 1.

    Concurrency: one thread at a time; all methods release the GIL while they work.
    """

    def __init__(self, num_leaves: int):
        if num_leaves < 1:
            raise ValueError(f"num_leaves = {num_leaves}: a tree has at least one leaf")
        self.num_leaves = num_leaves
        sizes = [num_leaves]
        while sizes[-1] > 1 or len(sizes) == 1:
            sizes.append(-(-sizes[-1] // _WIDTH))
        places = [-(-size // _WIDTH) * _WIDTH for size in sizes]
        self._sums = _aligned(sum(places))
        self._mins = _aligned(sum(places[1:]))
        self._mins[:] = np.inf
        self.handle = ffi.new("rl_tree *")
        """For C functions that take the tree."""
        self.handle.sums = native.pointer("double *", native.address_of(self._sums))
        self.handle.mins = native.pointer("double *", native.address_of(self._mins))
        self.handle.num_leaves, self.handle.num_levels = num_leaves, len(sizes)
        offsets = [0, *np.cumsum(places).tolist()]
        self.handle.offsets = [start for start, _ in pairwise(offsets)]
        self._root = offsets[-2]

    @property
    def masses(self) -> np.ndarray:
        """The leaves, float64 [num_leaves]; to be read only."""
        return self._sums[: self.num_leaves]

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._sums[self._root])

    @property
    def smallest(self) -> float:
        """The least positive mass; infinity when all are 0."""
        return float(self._mins[self._root - (len(self._sums) - len(self._mins))])

    def set(self, leaves: np.ndarray, masses: np.ndarray) -> None:
        """Give leaves new masses; of equal leaves the last one counts.

        Args:
            leaves: int64 [B].
            masses: float64 [B], from 0 to 2**500.

        Raises:
            ValueError: a leaf or a mass is out of its range; nothing was changed.
        """
        leaves, masses = np.ascontiguousarray(leaves, np.int64), np.ascontiguousarray(masses, np.float64)
        if leaves.shape != masses.shape or leaves.ndim != 1:
            raise ValueError(f"leaves {leaves.shape} and masses {masses.shape} must both be [B]")
        rc = lib.rl_tree_set(
            self.handle, ffi.from_buffer("int64_t[]", leaves), ffi.from_buffer("double[]", masses), len(leaves)
        )
        if rc < 0:
            raise ValueError(f"leaves must be in [0, {self.num_leaves}) and masses finite and not negative")

    def find(self, masses: np.ndarray) -> np.ndarray:
        """Return the leaves that hold given shares of the total, counted from the left.

        Args:
            masses: float64 [B], from 0 to `total`; what is outside counts as the end it is next to, NaN as 0.

        Returns:
            int64 [B]; never a leaf of mass 0, unless all are.
        """
        masses = np.ascontiguousarray(masses, np.float64)
        leaves = np.empty(len(masses), np.int64)
        lib.rl_tree_find(
            self.handle, ffi.from_buffer("double[]", masses), len(masses), ffi.from_buffer("int64_t[]", leaves)
        )
        return leaves

    def load(self, masses: np.ndarray) -> None:
        """Set the first leaves to `masses`, float64 [n], the others to 0, and compute the rest anew.

        Raises:
            ValueError: there are more masses than leaves, or one is out of its range; nothing was changed.
        """
        if masses.ndim != 1 or len(masses) > self.num_leaves or not _are_masses(masses):
            raise ValueError(f"needed are at most {self.num_leaves} masses, finite and not negative: {masses.shape}")
        self._sums[: self.num_leaves] = 0
        self._sums[: len(masses)] = masses
        lib.rl_tree_rebuild(self.handle)


def _are_masses(x: np.ndarray) -> bool:
    return bool(((x >= 0) & (x <= LARGEST_MASS)).all())


def _aligned(num: int) -> np.ndarray:
    """Zeros, float64 [num], the first one at the beginning of a cache line."""
    whole = np.zeros(num + _WIDTH, np.float64)
    return whole[-native.address_of(whole) % 64 // 8 :][:num]
