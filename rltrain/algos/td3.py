"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018, arXiv:1802.09477), algorithm 1.

One call is one update of the critics on one batch of the replay, and in every `actor_every_updates`-th one of the actor
and the targets. Actions are in policy units, [-1, 1] whatever the env's bounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.critic_training import CriticTraining
from rltrain.algos.flat_descent import through
from rltrain.algos.precision import forward_precision
from rltrain.algos.schedules import linear
from rltrain.algos.target_network import TargetNetwork
from rltrain.algos.train_state import TrainState
from rltrain.algos.transitions import Observations, Transitions
from rltrain.config.algorithms import Td3Config
from rltrain.config.schema import LearnerSection


def make_update(config: Td3Config, learner: LearnerSection, state: TrainState) -> Td3:
    """Return the function that updates actor and critics on one batch."""
    return Td3(config, learner, state)


class Td3:
    """One call is one update.

    Args:
        config: the options.
        learner: for its `precision` and `compile`.
        state: of a deterministic `ContinuousActor`; changed in place.
    """

    def __init__(self, config: Td3Config, learner: LearnerSection, state: TrainState):
        self.config, self.state, self.precision = config, state, learner.precision
        self.critics = CriticTraining(config, learner, state)
        self.target_actor = TargetNetwork(state.model, state.flat.flat, learner.compile)
        self._actor_metrics: dict[str, Tensor] = {}
        """Of the actor's last update."""

    def __call__(self, batch: dict[str, Tensor], progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Update the critics; when they are due, the actor and the targets.

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
        critic = self.critics.learn(rows, self._value_target(rows), learning_rate)
        skip = critic.skip
        if (state.updates + 1) % config.actor_every_updates == 0:
            skip = torch.maximum(skip, self._improve(rows.obs, learning_rate))
            self.critics.target.follow(config.target_tau)
            self.target_actor.follow(config.target_tau)
        state.count(skip)
        return critic.td_error, {
            "critic_loss": critic.loss,
            "td_error_mean": critic.td_error.mean(),
            "q_mean": critic.q_mean,
            "grad_norm": critic.grad_norm,
            "learning_rate": torch.full((), learning_rate, device=state.device),
            **self._actor_metrics,
        }

    @torch.no_grad()
    def _value_target(self, rows: Transitions) -> Tensor:
        """Compute return + discount * min Q_target(next, a), a the target actor's action with clipped noise, [B].

        Source: Fujimoto et al. 2018 (arXiv:1802.09477), equations 10 and 14.
        """
        config, state = self.config, self.state
        with forward_precision(state.device, self.precision):
            action = self.target_actor.network(rows.next_obs)
        noise = torch.randn(action.shape, generator=state.generator, device=state.device).mul_(config.target_noise)
        action = noise.clamp_(-config.target_noise_clip, config.target_noise_clip).add_(action).clamp_(-1, 1)
        return torch.addcmul(rows.return_, rows.discount, self.critics.target_value(rows.next_obs, action))

    def _improve(self, obs: Observations, learning_rate: float) -> Tensor:
        """Take one step up the first critic's mean value of the actor's actions; return 1 if it was skipped, else 0.

        Source: Silver et al. 2014, equation 9; the first critic alone as in Fujimoto et al. 2018, algorithm 1.
        """
        state = self.state
        with forward_precision(state.device, self.precision):
            action = state.model(obs)
        first, _ = self.critics.values(obs, action)
        with torch.no_grad():
            loss = -first.mean()
            gradient = torch.full_like(first, -1 / len(first))
        norm, skip = state.descend(loss, through((first,), (gradient,)), learning_rate)
        self._actor_metrics = {"actor_loss": loss, "actor_grad_norm": norm}
        return skip

    def set_exploration(self, progress: float, is_warm_up: bool) -> None:
        """Set whether the model acts at random; call before its weights are published.

        Args:
            progress: not used: the noise stays the same.
            is_warm_up: whether the replay is still being filled.
        """
        self.state.model.set_exploration(is_warm_up)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what is not in the train state."""
        return {**self.critics.state_dict(), "target_actor": self.target_actor.state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.critics.load_state_dict(state)
        self.target_actor.load(state["target_actor"])
