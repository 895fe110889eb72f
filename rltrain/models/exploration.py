"""Distributions that explore: what policies learned from replay add to their best action.

How much they explore is a buffer of the model, so that it travels and is saved with the weights. As in
`distributions.py`, a sample is a function of given uniforms. Replay does not look at behaviour log-probabilities;
`invariant` is what must not depend on the batch that a row is in, as a step of a choice could hide that.
Shapes: B rows, A actions or components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rltrain.models.distributions import DiagonalGaussian, Distribution, SquashedGaussian

LADDER = 7.0
"""Exponent of the last env is 1 + this. Source: Horgan et al. 2018 (arXiv:1803.00933), section 4.1 (alpha)."""


class EpsilonGreedy:
    """The action of the largest value, or with probability epsilon any action.

    Args:
        q: [B, A], values of the actions.
        epsilon: float32 [] or [B], probability of a random action.
    """

    def __init__(self, q: Tensor, epsilon: Tensor):
        self.q, self.epsilon = q.float(), epsilon

    def sample(self, uniform: Tensor) -> Tensor:
        """Choose at random where the first of the uniforms [B, 2] is below epsilon, by the second; int64 [B]."""
        num_actions = self.q.shape[1]
        anything = (uniform[:, 1] * num_actions).long().clamp_(max=num_actions - 1)  # the product may round up
        return torch.where(uniform[:, 0] < self.epsilon, anything, self.mode())

    def mode(self) -> Tensor:
        """Return int64 [B], the first of equal ones."""
        return self.q.argmax(1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions int64 [B]; -inf for one that is never chosen."""
        at_random = self.epsilon / self.q.shape[1]
        return torch.where(action == self.mode(), 1 - self.epsilon + at_random, at_random).log()

    def entropy(self) -> Tensor:
        """Return float32 [B]."""
        num_actions = self.q.shape[1]
        other = (self.epsilon / num_actions).expand(len(self.q))
        best = 1 - (num_actions - 1) * other
        return -torch.xlogy(best, best) - (num_actions - 1) * torch.xlogy(other, other)

    def invariant(self) -> Tensor:
        """Return the values, float32 [B, A]."""
        return self.q


class EpsilonLadder(EpsilonGreedy):
    """Epsilon-greedy where each env has its own share of epsilon.

    Args:
        q: [B, A], values of the actions.
        epsilon: float32 [], of env 0; also that of all rows until `for_envs` says whose they are.
        num_envs: E, envs in the whole run.
    """

    def __init__(self, q: Tensor, epsilon: Tensor, num_envs: int):
        super().__init__(q, epsilon)
        self.num_envs = num_envs

    def for_envs(self, env_indices: Tensor) -> EpsilonGreedy:
        """Return the distribution of rows from these envs, int64 [B]: env i has epsilon^(1 + 7 i / (E - 1)).

        Source: Horgan et al. 2018 (arXiv:1803.00933), section 4.1.
        """
        exponent = 1 + LADDER * env_indices.float() / max(1, self.num_envs - 1)
        return EpsilonGreedy(self.q, self.epsilon**exponent)


class NoisyAction:
    """An action with Gaussian noise, clipped to [-1, 1] in policy units.

    Args:
        action: [B, A], within [-1, 1].
        std: standard deviation of the noise.
    """

    def __init__(self, action: Tensor, std: float):
        self.action = action.float()
        self.std = std

    def sample(self, uniform: Tensor) -> Tensor:
        """Return float32 [B, A]."""
        return torch.add(self.action, torch.special.ndtri(uniform), alpha=self.std).clamp_(-1, 1)

    def mode(self) -> Tensor:
        """Return the action without noise, float32 [B, A]."""
        return self.action

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B]: the density of the noise before the clip; 0 without noise."""
        return self._noise().log_prob(action) if self.std > 0 else torch.zeros_like(self.action[:, 0])

    def entropy(self) -> Tensor:
        """Return float32 [B], of the noise before the clip; 0 without noise."""
        return self._noise().entropy() if self.std > 0 else torch.zeros_like(self.action[:, 0])

    def _noise(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.action, torch.full_like(self.action[0], math.log(self.std)))


class UniformAtFirst:
    """A distribution over [-1, 1] per component, or any action at all as long as a flag is set.

    Args:
        policy: what is sampled once the flag is down; always what `mode` and `entropy` are of.
        acts_at_random: bool [], the flag.
        log_volume: logarithm of the volume of the space that `policy` has its densities over.
    """

    def __init__(self, policy: SquashedGaussian | NoisyAction, acts_at_random: Tensor, log_volume: float):
        self.policy: Distribution = policy
        self.acts_at_random, self.log_volume = acts_at_random, log_volume

    def sample(self, uniform: Tensor) -> Tensor:
        """Return float32 [B, A]."""
        return torch.where(self.acts_at_random, 2 * uniform - 1, self.policy.sample(uniform))

    def mode(self) -> Tensor:
        """Return the policy's, float32 [B, A]."""
        return self.policy.mode()

    def log_prob(self, action: Tensor) -> Tensor:
        """Return float32 [B] for actions [B, A]."""
        return self.policy.log_prob(action).masked_fill(self.acts_at_random, -self.log_volume)

    def entropy(self) -> Tensor:
        """Return the policy's, float32 [B]."""
        return self.policy.entropy()

    def invariant(self) -> Tensor:
        """Return the policy's mode and entropy side by side, float32 [B, A + 1]."""
        return torch.cat([self.mode(), self.entropy().unsqueeze(1)], 1)
