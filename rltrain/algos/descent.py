"""One minibatch's step: the actor-critic loss put together, sent through autograd, and recorded."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.diagnostics import Diagnostics
from rltrain.algos.row_parts import Outputs
from rltrain.algos.schedules import Rates
from rltrain.algos.train_state import TrainState


def descend(
    state: TrainState, outputs: Outputs, log_ratio: Tensor, policy_loss: tuple[Tensor, Tensor],
    value_loss: tuple[Tensor, Tensor], weight: Tensor, value_coef: float, rates: Rates, diagnostics: Diagnostics,
) -> None:
    """Take one optimiser step on policy loss + value_coef * value loss - entropy_coef * entropy, means over rows.

    Args:
        state: changed in place.
        outputs: of the model; its values may be of more than the M rows.
        log_ratio: [M], log of the importance ratio.
        policy_loss: per row [M], and its gradient with respect to `outputs.log_prob`.
        value_loss: per row [M], and its gradient with respect to the values of these rows.
        weight: [M], see `losses`.
        value_coef: weight of the value loss.
        rates: step size and weight of the entropy.
        diagnostics: takes the record.
    """
    with torch.no_grad():
        policy_mean, value_mean = torch.dot(policy_loss[0], weight), torch.dot(value_loss[0], weight)
        entropy_mean = torch.dot(outputs.entropy, weight)
        loss = policy_mean + value_coef * value_mean - rates.entropy_coef * entropy_mean
        value_grad = value_loss[1] * (value_coef * weight)
        num_more = len(outputs.value) - len(value_grad)
        if num_more:
            value_grad = torch.cat([value_grad, value_grad.new_zeros(num_more)])
        gradients = (policy_loss[1] * weight, -rates.entropy_coef * weight, value_grad)
    grad_norm = state.apply(loss, lambda: outputs.backward(*gradients), rates.learning_rate)
    diagnostics.add(policy_mean, value_mean, entropy_mean, grad_norm, log_ratio, weight)
