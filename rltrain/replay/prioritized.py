"""Prioritized replay: which item is drawn how often, and how its gradient is weighed for it.

Item i is drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha, where p_i = |error_i| + eps (equation 1 and the
proportional variant of section 3.3), and its loss is multiplied by w_i = (N P(i))^-beta / max_j w_j (section 3.4).

Source: Schaul et al. 2016, "Prioritized experience replay" (arXiv:1511.05952).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrain.native import ffi, lib
from rltrain.replay.sum_tree import LARGEST_MASS, SumTree


@dataclass(frozen=True)
class Draw:
    """B items that were drawn."""

    items: np.ndarray
    """int64 [B]."""
    generations: np.ndarray
    """uint32 [B]: how often the item's place had been given to another transition."""
    is_weight: np.ndarray
    """float32 [B], importance weights, the largest of the batch or of the buffer being 1."""
    probability: np.ndarray
    """float64 [B]."""


class Priorities:
    """The priorities of a fixed number of places for items.

    Uniform replay is alpha = 0: all items that are in have the same mass, the others none.

    Args:
        num_items: places.
        alpha: power of the priorities, >= 0.
        eps: added to the absolute error, > 0.
        seed: of the draws; draw k of a seed is the same in any process.
        normalize_weights: `batch` or `buffer`: where the largest importance weight, which becomes 1, is looked for.

    Concurrency: one thread at a time; the GIL is released during the work.
    """

    def __init__(self, num_items: int, alpha: float, eps: float, seed: int, normalize_weights: str = "batch"):
        if normalize_weights not in ("batch", "buffer"):
            raise ValueError(f"normalize_weights = {normalize_weights!r}: accepted are 'batch' and 'buffer'")
        self.num_items, self.alpha, self.eps, self.seed = num_items, alpha, eps, seed
        self.over_all = normalize_weights == "buffer"
        self.tree = SumTree(num_items)
        self.generations = np.zeros(num_items, np.uint32)
        self.num_draws = 0
        self._largest = ffi.new("double *", 1.0)
        self._skipped = ffi.new("int64_t[2]")
        self._generations = ffi.from_buffer("uint32_t[]", self.generations)

    @property
    def num_stale(self) -> int:
        """Priorities that came too late: the place had been given to another transition."""
        return int(self._skipped[0])

    @property
    def num_not_finite(self) -> int:
        """Errors that were no numbers and left the priority as it was."""
        return int(self._skipped[1])

    @property
    def largest(self) -> float:
        """The largest mass so far, p^alpha; what new items get, so that each is drawn soon. 1 at first."""
        return float(self._largest[0])

    def enter(self, items: np.ndarray) -> None:
        """Let items be drawn, with the largest mass so far. int64 [B], each at most once."""
        self.tree.set(items, np.full(len(items), self.largest))

    def leave(self, items: np.ndarray) -> None:
        """Let items be drawn no more; priorities that are still on their way to them are dropped."""
        self.tree.set(items, np.zeros(len(items)))
        self.generations[items] += 1

    def sample(self, batch_size: int, beta: float) -> Draw:
        """Draw a batch, one item from each of `batch_size` equal parts of the total mass.

        Args:
            batch_size: B, at least 1.
            beta: exponent of the importance weights, in [0, 1].

        Raises:
            ValueError: nothing may be drawn, or `batch_size` is none.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: a batch has at least one item")
        masses, items = np.empty(batch_size), np.empty(batch_size, np.int64)
        generations, is_weight = np.empty(batch_size, np.uint32), np.empty(batch_size, np.float32)
        probability = np.empty(batch_size)
        rc = lib.rl_tree_sample(
            self.tree.handle, self._generations, self.seed, self.num_draws, batch_size, beta, self.over_all,
            ffi.from_buffer("double[]", masses), ffi.from_buffer("int64_t[]", items),
            ffi.from_buffer("uint32_t[]", generations), ffi.from_buffer("float[]", is_weight),
            ffi.from_buffer("double[]", probability),
        )
        if rc < 0:
            raise ValueError("nothing can be drawn: no item has entered")
        self.num_draws += 1
        return Draw(items, generations, is_weight, probability)

    def update(self, items: np.ndarray, generations: np.ndarray, td_error: np.ndarray) -> int:
        """Set the priorities of drawn items.

        Args:
            items: int64 [B], of a `Draw`.
            generations: uint32 [B], of the same.
            td_error: float32 [B], not weighed; of equal items the last one counts.

        Returns:
            How many were set; `num_stale` and `num_not_finite` count the others.

        Raises:
            ValueError: an item is out of range, or the shapes differ; nothing was changed.
        """
        items, errors = np.ascontiguousarray(items, np.int64), np.ascontiguousarray(td_error, np.float32)
        generations = np.ascontiguousarray(generations, np.uint32)
        if not items.shape == generations.shape == errors.shape == (len(items),):
            shapes = f"{items.shape}, {generations.shape} and {errors.shape}"
            raise ValueError(f"items, generations and td_error must all be [B], not {shapes}")
        kept = np.empty(len(items), np.int64)
        number = lib.rl_tree_update(
            self.tree.handle, self._generations, ffi.from_buffer("int64_t[]", items),
            ffi.from_buffer("uint32_t[]", generations), ffi.from_buffer("float[]", errors), len(items),
            self.alpha, self.eps, self._skipped, self._largest, ffi.from_buffer("int64_t[]", kept),
        )
        if number < 0:
            raise ValueError(f"items must be in [0, {self.num_items})")
        return int(number)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint keeps; the masses up to the last place in use, as a view."""
        used = np.flatnonzero(self.tree.masses)
        num = int(used[-1]) + 1 if len(used) else 0
        return {
            "masses": self.tree.masses[:num],
            "largest": np.array(self.largest),
            "alpha": np.array(self.alpha),
            "num_draws": np.array(self.num_draws, np.int64),
        }

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Restore from `state_dict` output. What was drawn before is stale from now on.

        Masses of another alpha mean nothing: then all items that were in are equal until they are drawn.

        Raises:
            ValueError: it is of a larger replay, or a value is out of its range; nothing was changed.
        """
        largest, num_draws = float(state["largest"]), int(state["num_draws"])
        if not (0 < largest <= LARGEST_MASS and num_draws >= 0):
            raise ValueError(f"the saved priorities do not fit: largest = {largest}, num_draws = {num_draws}")
        masses = state["masses"]
        if float(state["alpha"]) != self.alpha:
            masses, largest = (masses > 0).astype(np.float64), 1.0
        try:
            self.tree.load(masses)
        except ValueError as error:
            raise ValueError(f"the saved priorities do not fit: {error}") from None
        self.generations += 1
        self._largest[0] = largest
        self.num_draws = num_draws
