"""Everything that training changes, in one object that is saved and restored as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrain.algos.adam import FlatAdam
from rltrain.algos.flat_descent import step_down
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.algos.reward_scaling import RewardScaler
from rltrain.algos.row_parts import RowParts
from rltrain.errors import CheckpointError
from rltrain.fields import OBS
from rltrain.host_copies import valid_rows

if TYPE_CHECKING:
    from rltrain.config.schema import Config


class TrainState:
    """Model, optimiser, random generator and running statistics.

    Args:
        model: on its final device; its tensors move into flat memory.
        config: the run's configuration.
        num_envs: envs in the whole run.
    """

    def __init__(self, model: nn.Module, config: Config, num_envs: int):
        algo, env = config.algo.chosen, config.env
        self.model: Any = model
        self.flat = FlatParameters(model)
        self.device = self.flat.flat.device
        self.optimizer = FlatAdam(self.flat.flat, algo.adam_beta1, algo.adam_beta2, algo.adam_eps)
        self.generator = torch.Generator(self.device).manual_seed(config.run.seed)
        """For the order of minibatches, and the noise in losses."""
        self.reward_scaler = RewardScaler(num_envs, algo.discount, env.reward_clip, env.normalize_reward, self.device)
        self.normalize_obs = env.normalize_obs
        self.max_grad_norm = algo.max_grad_norm
        threads = config.learner.num_threads
        is_cut = self.device.type == "cpu" and ":" not in config.model.kind and algo.policy == "actor_critic"
        num_threads = int(threads) if is_cut and threads != "auto" else 1
        self.rows = RowParts(model, self.flat, num_threads, config.learner.precision, is_cut)
        """Evaluates minibatches; in parts, unless it is a network of the user's: its rows may depend on each other."""
        self.updates = 0
        """Optimiser steps tried so far."""
        self._bad_updates = torch.zeros((), device=self.device)
        self._bad_updates_in_a_row = torch.zeros((), device=self.device)

    @property
    def bad_updates(self) -> int:
        """Updates skipped so far because the loss or the gradient was not finite. Waits for the device."""
        return int(self._bad_updates)

    @property
    def bad_updates_in_a_row(self) -> int:
        """How many of the latest updates were skipped without a good one between. Waits for the device."""
        return int(self._bad_updates_in_a_row)

    def learning_reward(self, batch: dict[str, Tensor], lanes: np.ndarray) -> Tensor:
        """Return the rewards [T, B] that a batch is learned with; call once per batch."""
        ended = batch["terminated"] | batch["truncated"]
        return self.reward_scaler(batch["reward"][:-1], ended[:-1], batch["valid"][:-1], lanes)

    def apply(self, loss: Tensor, backward: Callable[[], None], learning_rate: float) -> Tensor:
        """Take one optimiser step down a gradient, with its norm limited.

        A step whose loss or gradient is not finite changes nothing and is counted, all on the device.

        Args:
            loss: scalar, only looked at for being finite.
            backward: adds the loss's gradient to the parameters'; see `flat_descent.through`.
            learning_rate: step size.

        Returns:
            The gradient's norm before it was limited, a scalar.
        """
        norm, skip = self.descend(loss, backward, learning_rate)
        self.count(skip)
        return norm

    def descend(
        self, loss: Tensor, backward: Callable[[], None], learning_rate: float
    ) -> tuple[Tensor, Tensor]:
        """Do what `apply` does, without counting, for updates of several steps; see `flat_descent.step_down`."""
        return step_down(self.flat, self.optimizer, self.max_grad_norm, loss, backward, learning_rate)

    def count(self, skip: Tensor) -> None:
        """Count one update; `skip` is a float32 scalar, 1 when it was skipped for not being finite, else 0."""
        self._bad_updates.add_(skip)
        self._bad_updates_in_a_row.add_(1).mul_(skip)
        self.updates += 1

    def finish_batch(self, batch: dict[str, Tensor], num_rows: int | None = None) -> None:
        """Let the observation statistics learn from a batch, after its updates.

        Not before: the behaviour policy normalised with the statistics as they were.

        Args:
            batch: field name -> [T+1, B, ...].
            num_rows: valid rows; None counts them here, which waits for the device.
        """
        if self.normalize_obs:
            rows = valid_rows(batch["valid"][:-1].flatten(), num_rows)
            obs = {name: x[:-1].flatten(0, 1).index_select(0, rows) for name, x in observations(batch).items()}
            self.model.update_statistics(obs)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything, tensors and plain numbers only."""
        return {
            "weights": torch.from_numpy(self.flat.publish_view().copy()),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "reward_scaler": self.reward_scaler.state_dict(),
            "updates": self.updates,
            "bad_updates": self.bad_updates,
            "bad_updates_in_a_row": self.bad_updates_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, in place, also from a run with another number of envs or device.

        The order of minibatches is another on another kind of device, whose generator starts from the seed.

        Raises:
            CheckpointError: it is of another model; nothing was changed.
        """
        saved = state["weights"].numel(), state["optimizer"]["mean"].numel()
        if saved != (self.flat.weight_bytes, self.flat.flat.numel()):
            raise CheckpointError(
                f"the checkpoint does not fit the model: it holds {saved[0]} bytes of weights with {saved[1]} trained "
                f"numbers, the model of this configuration has {self.flat.weight_bytes} with {self.flat.flat.numel()}. "
                "The checkpoint is damaged, or the code of the model has changed since. Use that code, or start anew."
            )
        self._load_generator(state["generator"].cpu())
        self.flat.load(state["weights"].cpu().numpy())
        self.optimizer.load_state_dict(state["optimizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        self.updates = state["updates"]
        self._bad_updates.fill_(state["bad_updates"])
        self._bad_updates_in_a_row.fill_(state["bad_updates_in_a_row"])

    def _load_generator(self, state: Tensor) -> None:
        if state.shape != self.generator.get_state().shape:
            return
        try:
            self.generator.set_state(state)
        except RuntimeError as error:
            raise CheckpointError(
                f"the checkpoint is damaged: its generator of minibatch orders is none ({error}). "
                "Use another checkpoint, or start anew."
            ) from None


def observations(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the observation leaves of a batch."""
    return {name: x for name, x in batch.items() if name == OBS or name.startswith(OBS + ".")}
