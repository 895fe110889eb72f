"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): twin critics, temperature learned.

One call is one update of critics, actor and temperature on one batch of the replay. Entropies and log-densities are of
actions in policy units, [-1, 1] whatever the env's bounds: those of the env's actions are shifted by the sum of the
logarithms of the half-widths, and with them the target entropy, so that the policy that is learned is the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltrain.algos.adam import FlatAdam
from rltrain.algos.critic_training import CriticTraining
from rltrain.algos.flat_descent import through
from rltrain.algos.precision import forward_precision
from rltrain.algos.schedules import linear
from rltrain.algos.train_state import TrainState
from rltrain.algos.transitions import Observations, Transitions
from rltrain.config.algorithms import SacConfig
from rltrain.config.schema import LearnerSection


def make_update(config: SacConfig, learner: LearnerSection, state: TrainState) -> Sac:
    """Return the function that updates actor and critics on one batch."""
    return Sac(config, learner, state)


class Sac:
    """One call is one update.

    Args:
        config: the options.
        learner: for its `precision` and `compile`.
        state: of a squashed `ContinuousActor`; changed in place.
    """

    def __init__(self, config: SacConfig, learner: LearnerSection, state: TrainState):
        self.config, self.state, self.precision = config, state, learner.precision
        self.critics = CriticTraining(config, learner, state)
        self.num_components: int = state.model.noise_components
        target = config.target_entropy
        self.target_entropy = -float(self.num_components) if target == "auto" else target
        self.log_temperature = torch.full((1,), math.log(config.initial_temperature), device=state.device)
        self.temperature_optimizer = FlatAdam(
            self.log_temperature, config.adam_beta1, config.adam_beta2, config.adam_eps
        )

    def __call__(self, batch: dict[str, Tensor], progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Update critics, actor, temperature and targets.

        Args:
            batch: see `Transitions`, on the device; actions float32 [B, A] in policy units.
            progress: part of training that is done, in [0, 1].

        Returns:
            (mean absolute temporal-difference errors of the critics, float32 [B] without their weights;
            metrics: scalars on the device). Importance weights are of the critics' loss only.
        """
        config, state = self.config, self.state
        rows = Transitions.of(batch, state.model.normalised)
        learning_rate = linear(config.learning_rate, config.learning_rate_end, progress)
        temperature = self.log_temperature.exp()
        normal = torch.randn(
            (2, len(rows.action), self.num_components), generator=state.generator, device=state.device
        )
        critic = self.critics.learn(rows, self._value_target(rows, temperature, normal[0]), learning_rate)
        actor_loss, entropy, grad_norm, skip = self._improve(rows.obs, temperature, normal[1], learning_rate)
        if config.learn_temperature:
            # d/d log(alpha) of alpha * (entropy - target), divided by alpha: the step is the same however small it is.
            self.temperature_optimizer.step((entropy - self.target_entropy).view(1), learning_rate, None, skip)
        self.critics.target.follow(config.target_tau)
        state.count(torch.maximum(skip, critic.skip))
        return critic.td_error, {
            "critic_loss": critic.loss,
            "actor_loss": actor_loss,
            "td_error_mean": critic.td_error.mean(),
            "q_mean": critic.q_mean,
            "entropy": entropy,
            "temperature": temperature.squeeze(0),
            "grad_norm": critic.grad_norm,
            "actor_grad_norm": grad_norm,
            "learning_rate": torch.full((), learning_rate, device=state.device),
        }

    @torch.no_grad()
    def _value_target(self, rows: Transitions, temperature: Tensor, normal: Tensor) -> Tensor:
        """Compute return + discount * (min Q_target(next, a) - temperature * log pi(a)), a ~ pi, [B].

        Entropies between the two observations of an n-step transition are not counted.

        Source: Haarnoja et al. 2018 (arXiv:1812.05905), equations 3 and 5.
        """
        model = self.state.model
        with forward_precision(self.state.device, self.precision):
            outputs = model(rows.next_obs)
        action, log_prob = model.draw(outputs, normal)
        soft_value = self.critics.target_value(rows.next_obs, action).addcmul_(temperature, log_prob, value=-1)
        return torch.addcmul(rows.return_, rows.discount, soft_value)

    def _improve(
        self, obs: Observations, temperature: Tensor, normal: Tensor, learning_rate: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Take one step down the mean of temperature * log pi(a) - min Q(obs, a), a ~ pi.

        Returns:
            (loss, entropy, norm of the gradient, 1 if it was skipped), scalars.

        Source: Haarnoja et al. 2018 (arXiv:1812.05905), equation 9.
        """
        state = self.state
        with forward_precision(state.device, self.precision):
            outputs = state.model(obs)
        action, log_prob = state.model.draw(outputs, normal)
        first, second = self.critics.values(obs, action)
        with torch.no_grad():
            num_rows = len(log_prob)
            entropy = -log_prob.mean()
            loss = -temperature.squeeze(0) * entropy - torch.minimum(first, second).mean()
            is_first = (first <= second).float().div_(-num_rows)
            gradients = (temperature / num_rows).expand(num_rows), is_first, -1 / num_rows - is_first
        norm, skip = state.descend(loss, through((log_prob, first, second), gradients), learning_rate)
        return loss, entropy, norm, skip

    def set_exploration(self, progress: float, is_warm_up: bool) -> None:
        """Set whether the model acts at random; call before its weights are published.

        Args:
            progress: not used: the temperature says how much is explored.
            is_warm_up: whether the replay is still being filled.
        """
        self.state.model.set_exploration(is_warm_up)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what is not in the train state."""
        return {
            **self.critics.state_dict(),
            "log_temperature": self.log_temperature.clone(),
            **{f"temperature_{name}": x for name, x in self.temperature_optimizer.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.critics.load_state_dict(state)
        self.log_temperature.copy_(state["log_temperature"])
        optimizer = self.temperature_optimizer
        optimizer.load_state_dict({name: state[f"temperature_{name}"] for name in optimizer.state_dict()})
