"""What an update gets from the replay, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rltrain.algos.train_state import observations
from rltrain.fields import ACTION, NEXT, OBS

Observations = dict[str, Tensor]


@dataclass
class Transitions:
    """B transitions of up to n env steps.

    Args:
        obs: name -> [B, ...], as the networks want them.
        next_obs: the same, of the observation that is bootstrapped from.
        action: [B, *stored_shape].
        return_: float32 [B], discounted sum of the rewards between the two observations.
        discount: float32 [B], factor of the value of `next_obs`; 0 after a termination.
        is_weight: float32 [B], factor of each transition's loss.
    """

    obs: Observations
    next_obs: Observations
    action: Tensor
    return_: Tensor
    discount: Tensor
    is_weight: Tensor

    @classmethod
    def of(cls, batch: dict[str, Tensor], normalise: Callable[[Observations], Observations]) -> Transitions:
        """Take a batch apart.

        Args:
            batch: what `ReplayStore.batch_fields` names, and `is_weight`.
            normalise: turns observations as the env gave them into what the networks want.
        """
        following = {name.removeprefix(NEXT): x for name, x in batch.items() if name.startswith(NEXT + OBS)}
        return cls(
            normalise(observations(batch)), normalise(following), batch[ACTION], batch["return_"], batch["discount"],
            batch["is_weight"],
        )
