"""Twin critics with their targets and optimiser: what SAC and TD3 learn values with. Never published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rltrain.algos.adam import FlatAdam
from rltrain.algos.flat_descent import step_down, through
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.algos.precision import forward_precision
from rltrain.algos.target_network import TargetNetwork
from rltrain.algos.train_state import TrainState
from rltrain.algos.transitions import Observations, Transitions
from rltrain.config.algorithms import SacConfig, Td3Config
from rltrain.config.schema import LearnerSection

_SEED_OFFSET = 0x9E3779B97F4A7C15
"""Between the seeds of actor and critics, which would else begin with the same numbers."""


@dataclass
class CriticStep:
    """What one update of the critics gave; scalars but for the first."""

    td_error: Tensor
    """float32 [B], mean absolute error of the two."""
    loss: Tensor
    q_mean: Tensor
    grad_norm: Tensor
    skip: Tensor
    """1 when nothing was changed as something was not finite, else 0."""


class CriticTraining:
    """Two critics that learn from the same targets.

    Args:
        config: the options.
        learner: for its `precision` and `compile`.
        state: of a `ContinuousActor`, which says what critics fit to it; for its seed.
    """

    def __init__(self, config: SacConfig | Td3Config, learner: LearnerSection, state: TrainState):
        self.device, self.precision, self.max_grad_norm = state.device, learner.precision, config.max_grad_norm
        generator = torch.Generator().manual_seed((state.generator.initial_seed() + _SEED_OFFSET) % 2**63)
        self.critics = state.model.make_critics(generator).to(state.device)
        if learner.compile:
            self.critics.compile()
        self.flat = FlatParameters(self.critics)
        self.optimizer = FlatAdam(self.flat.flat, config.adam_beta1, config.adam_beta2, config.adam_eps)
        self.target = TargetNetwork(self.critics, self.flat.flat, learner.compile)

    @torch.no_grad()
    def target_value(self, obs: Observations, action: Tensor) -> Tensor:
        """Return the smaller of the target critics' values, float32 [B].

        Source: Fujimoto et al. 2018 (arXiv:1802.09477), equation 10.
        """
        with forward_precision(self.device, self.precision):
            return torch.minimum(*self.target.network(obs, action))

    def values(self, obs: Observations, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return both values, float32 [B] each, with gradients of `action` and none of the critics."""
        with forward_precision(self.device, self.precision):
            first, second = self.critics(obs, action, are_frozen=True)
        return first, second

    def learn(self, rows: Transitions, value_target: Tensor, learning_rate: float) -> CriticStep:
        """Take one step down half of the weighted mean squared error of each critic.

        Args:
            rows: what was done.
            value_target: [B].
            learning_rate: step size.
        """
        with forward_precision(self.device, self.precision):
            first, second = self.critics(rows.obs, rows.action)
        with torch.no_grad():
            weight = rows.is_weight / len(value_target)
            errors = first - value_target, second - value_target
            gradients = errors[0] * weight, errors[1] * weight
            loss = torch.dot(gradients[0], errors[0]).add_(torch.dot(gradients[1], errors[1])).div_(2)
        norm, skip = step_down(
            self.flat, self.optimizer, self.max_grad_norm, loss, through((first, second), gradients), learning_rate
        )
        td_error = errors[0].abs_().add_(errors[1].abs_()).div_(2)
        return CriticStep(td_error, loss, first.detach().mean(), norm, skip)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of weights, targets and moments, flat."""
        return {
            "critics": torch.from_numpy(self.flat.publish_view().copy()),
            "target_critics": self.target.state(),
            **{f"critics_{name}": x for name, x in self.optimizer.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.flat.load(state["critics"].cpu().numpy())
        self.target.load(state["target_critics"])
        self.optimizer.load_state_dict({name: state[f"critics_{name}"] for name in self.optimizer.state_dict()})
