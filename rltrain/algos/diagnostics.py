"""What an update reports: collected as tensors on the device while it runs, put into numbers once at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rltrain.algos.schedules import Rates


@dataclass
class Diagnostics:
    """Losses and ratios of the minibatches of one batch.

    Args:
        clip_range: half-width of the ratio clip, or None.
    """

    clip_range: float | None
    scalars: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    log_ratios: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    value_targets: list[Tensor] = field(default_factory=list)
    value_weights: list[Tensor] = field(default_factory=list)

    def add(
        self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor, grad_norm: Tensor, log_ratio: Tensor,
        weight: Tensor,
    ) -> None:
        """Note one minibatch: scalars, and [M] log importance ratios with the rows' weights."""
        self.scalars.append((policy_loss.detach(), value_loss.detach(), entropy.detach(), grad_norm))
        self.log_ratios.append(log_ratio.detach())
        self.weights.append(weight)

    def add_values(self, value: Tensor, value_target: Tensor, weight: Tensor) -> None:
        """Note values before the update, their targets and the rows' weights, [M] each."""
        self.values.append(value)
        self.value_targets.append(value_target)
        self.value_weights.append(weight)

    def approx_kl(self, num_last: int) -> Tensor:
        """Return the mean over the last `num_last` minibatches of ratio - 1 - log(ratio).

        Source: Schulman, "Approximating KL divergence", 2020, estimator k3.
        """
        log_ratio = torch.cat(self.log_ratios[-num_last:])
        weight = torch.cat(self.weights[-num_last:])
        return torch.dot(torch.expm1(log_ratio) - log_ratio, weight) / len(self.log_ratios[-num_last:])

    def metrics(self, rates: Rates) -> dict[str, Tensor]:
        """Return scalars: means over all minibatches, `ratio_deviation` of the first one alone."""
        policy_loss, value_loss, entropy, grad_norm = torch.stack([torch.stack(s) for s in self.scalars]).mean(0)
        first = torch.expm1(self.log_ratios[0]).abs()
        learning_rate, entropy_coef = (torch.full((), rate, device=policy_loss.device) for rate in rates)
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": self.approx_kl(len(self.log_ratios)),
            "clip_fraction": self._clip_fraction(),
            "explained_variance": self._explained_variance(),
            "grad_norm": grad_norm,
            "ratio_deviation": torch.dot(first, self.weights[0]),
            "learning_rate": learning_rate,
            "entropy_coef": entropy_coef,
        }

    def _clip_fraction(self) -> Tensor:
        """Part of the rows whose ratio is outside the clip; 0 without a clip."""
        limit = float("inf") if self.clip_range is None else self.clip_range
        outside = (torch.expm1(torch.cat(self.log_ratios)).abs() > limit).float()
        return torch.dot(outside, torch.cat(self.weights)) / len(self.weights)

    def _explained_variance(self) -> Tensor:
        """1 - Var(target - value) / Var(target); 1 is a perfect critic, 0 one as good as a constant."""
        target, weight = torch.cat(self.value_targets), torch.cat(self.value_weights) / len(self.value_weights)
        error = target - torch.cat(self.values)
        return 1 - _variance(error, weight) / _variance(target, weight).clamp(min=1e-12)


def _variance(x: Tensor, weight: Tensor) -> Tensor:
    return torch.dot((x - torch.dot(x, weight)).square(), weight)
