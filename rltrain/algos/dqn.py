"""Deep Q-learning (Mnih et al. 2015, doi:10.1038/nature14236) with double and dueling networks.

One call is one update on one batch of the replay. Returns over n steps and importance weights come with the batch, the
dueling network with the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.algos.flat_descent import through
from rltrain.algos.precision import forward_precision
from rltrain.algos.schedules import linear
from rltrain.algos.target_network import TargetNetwork
from rltrain.algos.train_state import TrainState
from rltrain.algos.transitions import Transitions
from rltrain.config.algorithms import DqnConfig
from rltrain.config.schema import LearnerSection


def make_update(config: DqnConfig, learner: LearnerSection, state: TrainState) -> Dqn:
    """Return the function that updates the network on one batch."""
    return Dqn(config, learner, state)


class Dqn:
    """One call is one update.

    Args:
        config: the options.
        learner: for its `precision` and `compile`.
        state: of a `QNetwork`; changed in place.
    """

    def __init__(self, config: DqnConfig, learner: LearnerSection, state: TrainState):
        self.config, self.state, self.precision = config, state, learner.precision
        self.target = TargetNetwork(state.model.network, state.flat.flat, learner.compile)

    def __call__(self, batch: dict[str, Tensor], progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Update the network, and the target network when it is due.

        Args:
            batch: see `Transitions`, on the device; actions int64 [B].
            progress: part of training that is done, in [0, 1].

        Returns:
            (temporal-difference errors float32 [B] without their weights, metrics: scalars on the device).
        """
        config, state = self.config, self.state
        rows = Transitions.of(batch, state.model.normalised)
        learning_rate = linear(config.learning_rate, config.learning_rate_end, progress)
        action = rows.action.unsqueeze(1)
        value_target = self._value_target(rows)
        with forward_precision(state.device, self.precision):
            q = state.model(rows.obs)
        with torch.no_grad():
            chosen = q.gather(1, action).squeeze(1)
            td_error = value_target - chosen
            loss, slope = td_loss(td_error, config.loss)
            weight = rows.is_weight / len(td_error)
            mean_loss = torch.dot(loss, weight)
            gradient = torch.zeros_like(q).scatter_(1, action, (-slope * weight).unsqueeze(1))
        grad_norm = state.apply(mean_loss, through((q,), (gradient,)), learning_rate)
        if state.updates % config.target_every_updates == 0:
            self.target.follow(config.target_tau)
        return td_error, {
            "critic_loss": mean_loss,
            "td_error_mean": td_error.abs().mean(),
            "q_mean": chosen.mean(),
            "grad_norm": grad_norm,
            "learning_rate": torch.full((), learning_rate, device=state.device),
            "epsilon": state.model.epsilon.clone(),
        }

    @torch.no_grad()
    def _value_target(self, rows: Transitions) -> Tensor:
        """Compute return + discount * Q_target(next, argmax Q(next)), [B].

        Source: van Hasselt et al. 2016 (arXiv:1509.06461), equation 4; without `double`, equation 2.
        """
        with forward_precision(self.state.device, self.precision):
            target_q = self.target.network(rows.next_obs).float()
            chooser = self.state.model(rows.next_obs) if self.config.double else target_q
        value = target_q.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        return torch.addcmul(rows.return_, rows.discount, value)

    def set_exploration(self, progress: float, is_warm_up: bool) -> None:
        """Set the model's probability of a random action; call before its weights are published.

        Args:
            progress: part of training that is done, in [0, 1].
            is_warm_up: whether the replay is still being filled; all actions are then random.
        """
        config = self.config
        part = min(1.0, progress / config.epsilon_fraction)
        epsilon = linear(config.epsilon_start, config.epsilon_end, part)
        self.state.model.set_exploration(1.0 if is_warm_up else epsilon)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what is not in the train state."""
        return {"target": self.target.state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.target.load(state["target"])


def td_loss(td_error: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Compute the loss of temporal-difference errors [B] and its slope, [B] each.

    Args:
        td_error: value target less value.
        kind: `squared`, half of the square; or `huber`, the same up to 1 and linear with slope 1 beyond.

    Source: Mnih et al. 2015, Methods, "Training algorithm" (the error clipped to [-1, 1] is Huber's loss).
    """
    if kind == "squared":
        return td_error.square() / 2, td_error
    slope = td_error.clamp(-1, 1)
    return slope * (td_error - slope / 2), slope
