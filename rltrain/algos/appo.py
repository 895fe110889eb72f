"""Asynchronous PPO: PPO's clipped loss on V-trace targets; without the clip and with one epoch it is IMPALA.

(Espeholt et al. 2018, arXiv:1802.01561; Petrenko et al. 2020, arXiv:2006.11751.) Minibatches are whole env columns,
and every minibatch's own forward pass gives the values and importance ratios that its targets need, so that targets
are as new as the weights, whatever the age of the data.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rltrain.algos import losses
from rltrain.algos.descent import descend
from rltrain.algos.diagnostics import Diagnostics
from rltrain.algos.minibatches import column_minibatches
from rltrain.algos.returns import vtrace
from rltrain.algos.schedules import Rates
from rltrain.algos.train_state import TrainState, observations
from rltrain.config.algorithms import AppoConfig
from rltrain.config.schema import LearnerSection


def make_update(config: AppoConfig, learner: LearnerSection) -> Appo:
    """Return the function that updates the policy on one batch."""
    return Appo(config)


class FragmentReplay(Protocol):
    """Columns of earlier batches, see `replay.fragments`."""

    def mix(self, fresh: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put drawn columns behind fresh ones [T+1, B, ...]."""

    def prioritize(self, error: Tensor) -> None:
        """Set the priorities of what was mixed last, float32 [B + K]."""


class Appo:
    """One call is one batch.

    Args:
        config: the options.
        learner: for its `precision`.
    """

    def __init__(self, config: AppoConfig):
        self.config = config
        self.replay: FragmentReplay | None = None
        """Earlier fragments that are learned from beside fresh ones; set by who makes the update."""

    def __call__(
        self, state: TrainState, batch: dict[str, Tensor], progress: float, lanes: np.ndarray,
        num_rows: int | None = None,
    ) -> dict[str, Tensor]:
        """Update the policy.

        Args:
            state: changed in place.
            batch: field name -> [T+1, B, ...].
            progress: part of training that is done, in [0, 1].
            lanes: int64 [fragments], the lane of each block of columns.
            num_rows: valid rows; None counts them here, where that is needed, which waits for the device.

        Returns:
            Metrics, scalars on the device.
        """
        config = self.config
        rates = Rates.at(config, progress)
        diagnostics = Diagnostics(config.clip_range)
        reward = state.learning_reward(batch, lanes)
        learned = {**batch, "reward": torch.cat([reward, reward[-1:]])}
        column_error: Tensor | None = None
        if self.replay is not None:
            learned = self.replay.mix(learned)
            num_columns = learned["reward"].shape[1]
            learned["column"] = torch.arange(num_columns, device=state.device)[None]
            column_error = torch.zeros(num_columns, device=state.device)
        for _ in range(config.epochs):
            for columns in column_minibatches(learned, config.num_minibatches, state.generator):
                self._step(state, columns, rates, diagnostics, column_error)
        if self.replay is not None and column_error is not None:
            self.replay.prioritize(column_error)
        state.finish_batch(batch, num_rows)
        return diagnostics.metrics(rates)

    def _step(
        self, state: TrainState, columns: dict[str, Tensor], rates: Rates, diagnostics: Diagnostics,
        column_error: Tensor | None,
    ) -> None:
        """One minibatch; where wanted, note each column's mean absolute difference between value target and value."""
        config = self.config
        reward, valid = columns["reward"][:-1], columns["valid"][:-1]
        num_rows = reward.numel()
        outputs = state.rows.evaluate(
            {name: x.flatten(0, 1) for name, x in observations(columns).items()},
            columns["action"][:-1].flatten(0, 1),
        )
        value = outputs.value[:num_rows]
        with torch.no_grad():
            log_ratio = outputs.log_prob - columns["behaviour_logp"][:-1].flatten()
            value_target, advantage = vtrace(
                log_ratio.view_as(reward), reward, outputs.value.view(-1, reward.shape[1]),
                columns["terminated"][:-1], columns["truncated"][:-1], config.discount,
                config.vtrace_rho_clip, config.vtrace_c_clip, config.vtrace_lambda, valid,
            )
            if column_error is not None:
                difference = (value_target - value.view_as(reward)).abs() * valid
                column_error[columns["column"][0]] = difference.sum(0) / valid.sum(0).clamp(min=1)
            value_target, advantage = value_target.flatten(), advantage.flatten()
            weight = losses.mean_weights(valid.flatten())
            if config.normalize_advantage:
                advantage = losses.normalised(advantage, weight)
            if config.clip_range is None:
                policy_loss = losses.policy_gradient(outputs.log_prob, log_ratio, advantage, config.vtrace_rho_clip)
            else:
                policy_loss = losses.clipped_surrogate(log_ratio, advantage, config.clip_range)
            value_loss = losses.value_error(value, value_target)
            diagnostics.add_values(value, value_target, weight)
        descend(state, outputs, log_ratio, policy_loss, value_loss, weight, config.value_coef, rates, diagnostics)
