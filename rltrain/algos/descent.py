"""One minibatch's step: the actor-critic loss put together, sent through autograd, and recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltrain.algos.diagnostics import Diagnostics
from rltrain.algos.schedules import Rates
from rltrain.algos.train_state import TrainState


@dataclass
class Outputs:
    """What the model said about M rows, with autograd history: [M] each."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor

    @classmethod
    def of(cls, policy: Any, action: Tensor, value: Tensor) -> Outputs:
        """Take them from M rows: their `Distribution`, actions [M, ...] and values [M]; float32, whatever they were."""
        return cls(policy.log_prob(action).float(), policy.entropy().float(), value.float())


def descend(
    state: TrainState, outputs: Outputs, log_ratio: Tensor, policy_loss: tuple[Tensor, Tensor],
    value_loss: tuple[Tensor, Tensor], weight: Tensor, value_coef: float, rates: Rates, diagnostics: Diagnostics,
) -> None:
    """Take one optimiser step on policy loss + value_coef * value loss - entropy_coef * entropy, means over rows.

    Args:
        state: changed in place.
        outputs: of the model.
        log_ratio: [M], log of the importance ratio.
        policy_loss: per row [M], and its gradient with respect to `outputs.log_prob`.
        value_loss: per row [M], and its gradient with respect to `outputs.value`.
        weight: [M], see `losses`.
        value_coef: weight of the value loss.
        rates: step size and weight of the entropy.
        diagnostics: takes the record.
    """
    with torch.no_grad():
        policy_mean, value_mean = torch.dot(policy_loss[0], weight), torch.dot(value_loss[0], weight)
        entropy_mean = torch.dot(outputs.entropy, weight)
        loss = policy_mean + value_coef * value_mean - rates.entropy_coef * entropy_mean
        gradients = (policy_loss[1] * weight, value_loss[1] * (value_coef * weight), -rates.entropy_coef * weight)
    grad_norm = state.apply(loss, (outputs.log_prob, outputs.value, outputs.entropy), gradients, rates.learning_rate)
    diagnostics.add(policy_mean, value_mean, entropy_mean, grad_norm, log_ratio, weight)
