"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with generalised advantage estimation.

One batch: values of all observations, advantages, then `epochs` passes over its valid rows in shuffled minibatches.
With a single epoch the minibatches are whole env columns, and each one's own forward pass gives the values that its
advantages need: the networks run over the batch once instead of twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrain.algos import losses
from rltrain.algos.descent import descend
from rltrain.algos.diagnostics import Diagnostics
from rltrain.algos.minibatches import column_minibatches, row_minibatches
from rltrain.algos.returns import gae
from rltrain.algos.row_parts import Outputs
from rltrain.algos.schedules import Rates
from rltrain.algos.train_state import TrainState, observations
from rltrain.config.algorithms import PpoConfig
from rltrain.config.schema import LearnerSection
from rltrain.host_copies import valid_rows


def make_update(config: PpoConfig, learner: LearnerSection) -> Ppo:
    """Return the function that updates the policy on one batch."""
    return Ppo(config)


@dataclass
class Rows:
    """What the loss needs, for M rows: [M] each."""

    action: Tensor
    behaviour_logp: Tensor
    advantage: Tensor
    value_target: Tensor
    old_value: Tensor
    weight: Tensor


class Ppo:
    """One call is one batch.

    Args:
        config: the options.
    """

    def __init__(self, config: PpoConfig):
        self.config = config

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
            num_rows: valid rows, at least one; None counts them here, which waits for the device, as `target_kl` does.

        Returns:
            Metrics, scalars on the device.
        """
        config = self.config
        rates = Rates.at(config, progress)
        diagnostics = Diagnostics(config.clip_range)
        reward = state.learning_reward(batch, lanes)
        if config.epochs == 1:
            self._learn_columns(state, batch, reward, rates, diagnostics)
        else:
            self._learn_rows(state, batch, reward, rates, diagnostics, num_rows)
        state.finish_batch(batch, num_rows)
        return diagnostics.metrics(rates)

    def _learn_rows(
        self, state: TrainState, batch: dict[str, Tensor], reward: Tensor, rates: Rates, diagnostics: Diagnostics,
        num_rows: int | None,
    ) -> None:
        """Several epochs: values once, then shuffled rows."""
        config = self.config
        num_steps = reward.shape[0]
        obs = {name: x.flatten(0, 1) for name, x in observations(batch).items()}
        value = state.rows.values(obs).view(num_steps + 1, -1)
        valid = batch["valid"][:-1]
        advantage = gae(
            reward, value, batch["terminated"][:-1], batch["truncated"][:-1], config.discount, config.gae_lambda, valid
        )
        fields = {
            "action": batch["action"][:-1],
            "behaviour_logp": batch["behaviour_logp"][:-1],
            "advantage": advantage,
            "value_target": advantage + value[:-1],
            "old_value": value[:-1],
        }
        fields = {name: x.flatten(0, 1) for name, x in fields.items()}
        rows = valid_rows(valid.flatten(), num_rows)
        diagnostics.add_values(fields["old_value"], fields["value_target"], losses.mean_weights(valid.flatten()))
        for _ in range(config.epochs):
            order, parts = row_minibatches(rows, config.num_minibatches, state.generator)
            sizes = [len(part) for part in parts]
            shuffled = {name: x.index_select(0, order).split(sizes) for name, x in fields.items()}
            for i, part in enumerate(parts):
                minibatch = Rows(
                    **{name: pieces[i] for name, pieces in shuffled.items()},
                    weight=torch.full((sizes[i],), 1 / sizes[i], device=state.device),
                )
                outputs = state.rows.evaluate(
                    {name: x.index_select(0, part) for name, x in obs.items()}, minibatch.action
                )
                self._step(state, outputs, minibatch, rates, diagnostics)
            if config.target_kl is not None and diagnostics.approx_kl(len(parts)) > config.target_kl:
                break

    def _learn_columns(
        self, state: TrainState, batch: dict[str, Tensor], reward: Tensor, rates: Rates, diagnostics: Diagnostics
    ) -> None:
        """One epoch: whole columns, values from the forward pass that is learned from."""
        config = self.config
        num_steps = reward.shape[0]
        batch = {**batch, "reward": torch.cat([reward, reward[-1:]])}
        for columns in column_minibatches(batch, config.num_minibatches, state.generator):
            num_rows = num_steps * columns["reward"].shape[1]
            action = columns["action"][:-1].flatten(0, 1)
            outputs = state.rows.evaluate({name: x.flatten(0, 1) for name, x in observations(columns).items()}, action)
            old_value = outputs.value
            valid = columns["valid"][:-1]
            advantage = gae(
                columns["reward"][:-1], old_value.view(num_steps + 1, -1), columns["terminated"][:-1],
                columns["truncated"][:-1], config.discount, config.gae_lambda, valid,
            ).flatten()
            old_value = old_value[:num_rows]
            minibatch = Rows(
                action=action,
                behaviour_logp=columns["behaviour_logp"][:-1].flatten(),
                advantage=advantage,
                value_target=advantage + old_value,
                old_value=old_value,
                weight=losses.mean_weights(valid.flatten()),
            )
            diagnostics.add_values(old_value, minibatch.value_target, minibatch.weight)
            self._step(state, outputs, minibatch, rates, diagnostics)

    def _step(self, state: TrainState, outputs: Outputs, rows: Rows, rates: Rates, diagnostics: Diagnostics) -> None:
        """One minibatch."""
        config, weight = self.config, rows.weight
        with torch.no_grad():
            log_ratio = outputs.log_prob - rows.behaviour_logp
            advantage = losses.normalised(rows.advantage, weight) if config.normalize_advantage else rows.advantage
            policy_loss = losses.clipped_surrogate(log_ratio, advantage, config.clip_range)
            value_loss = losses.value_error(
                outputs.value[: len(weight)], rows.value_target, rows.old_value, config.clip_range_value
            )
        descend(state, outputs, log_ratio, policy_loss, value_loss, weight, config.value_coef, rates, diagnostics)
