"""Prioritized fragments: columns of earlier batches that are learned from again beside fresh ones.

For algorithms that correct for the age of data themselves, as V-trace does. Nothing of it is saved: a resumed run
begins with none.

Source: IMPALA with experience replay, Espeholt et al. 2018 (arXiv:1802.01561), section 5.2.2, where fragments are drawn
uniformly; the priority, the mean absolute difference between value target and value, is that of Ape-X and R2D2 turned
to fragments (Kapturowski et al. 2019).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rltrain.host_copies import on_device
from rltrain.replay.prioritized import Draw, Priorities


class FragmentReplay:
    """A ring of env columns, each a fragment of one env.

    Args:
        capacity: columns kept.
        share: part of each mixed batch that comes from here, in (0, 1).
        alpha: power of the priorities; 0 draws uniformly.
        seed: of the draws.
    """

    def __init__(self, capacity: int, share: float, alpha: float, seed: int):
        self.capacity, self.share = capacity, share
        self.priorities = Priorities(capacity, alpha, 1e-6, seed)
        self._kept: dict[str, Tensor] = {}
        self._head = 0
        """Columns that came in."""
        self._owed = 0.0
        """Drawn columns that no whole one has come of yet."""
        self._fresh = np.zeros(0, np.int64)
        self._drawn: Draw | None = None
        self._copying: tuple[Tensor, torch.cuda.Event] | None = None

    def mix(self, fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put drawn columns behind fresh ones, and keep the fresh ones.

        Args:
            fresh: name -> [T+1, B, ...], as they are learned from.

        Returns:
            name -> [T+1, B + K, ...]; K = B share / (1 - share) on average, none while nothing is kept.
        """
        self._set_copied()
        num_fresh = next(iter(fresh.values())).shape[1]
        self._owed += num_fresh * self.share / (1 - self.share)
        num_drawn = math.floor(self._owed + 1e-9)
        self._owed -= num_drawn
        mixed = fresh
        self._drawn = None
        if self._head and num_drawn:
            self._drawn = self.priorities.sample(num_drawn, beta=0.0)
            places = on_device(self._drawn.items, fresh["reward"].device)
            mixed = {
                name: torch.cat([x, self._kept[name].index_select(1, places)], 1) for name, x in fresh.items()
            }
        self._keep(fresh, num_fresh)
        return mixed

    def _keep(self, fresh: dict[str, Tensor], num_fresh: int) -> None:
        """Write the fresh columns over the oldest ones; of a batch larger than the ring the last ones."""
        if not self._kept:
            self._kept = {name: x.new_zeros((x.shape[0], self.capacity, *x.shape[2:])) for name, x in fresh.items()}
        self._fresh = np.arange(self._head, self._head + num_fresh)[-self.capacity :] % self.capacity
        places = on_device(self._fresh, fresh["reward"].device)
        for name, x in fresh.items():
            self._kept[name][:, places] = x[:, -len(self._fresh) :]
        self._head += num_fresh
        self.priorities.leave(self._fresh)
        self.priorities.enter(self._fresh)

    def prioritize(self, error: Tensor) -> None:
        """Set the priorities of what was mixed last.

        Args:
            error: float32 [B + K], of each column; columns overwritten meanwhile are left out.
        """
        if error.is_cuda:  # nothing is drawn before the next `mix`: until then the copy need not be waited for
            host = torch.empty(error.shape, dtype=error.dtype, pin_memory=True)
            host.copy_(error, non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(error.device))
            self._copying = host, event
        else:
            self._set_priorities(error.numpy())

    def _set_copied(self) -> None:
        """Set the priorities that `prioritize` left to this: their copy has to be there now."""
        if self._copying is not None:
            host, event = self._copying
            self._copying = None
            event.synchronize()
            self._set_priorities(host.numpy())

    def _set_priorities(self, errors: np.ndarray) -> None:
        if self._drawn is not None:
            num_drawn = len(self._drawn.items)
            self.priorities.update(self._drawn.items, self._drawn.generations, errors[-num_drawn:])
            errors = errors[:-num_drawn]
        self.priorities.update(self._fresh, self.priorities.generations[self._fresh], errors[-len(self._fresh) :])
