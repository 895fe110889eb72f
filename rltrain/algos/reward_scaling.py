"""Rewards as the learner sees them: clipped, then divided by the running standard deviation of the discounted return.

The statistics are of the return since the episode's start, `g[t] = r[t] + gamma * g[t-1]`, which has the magnitude of
what the critic must predict. Reported returns stay raw.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rltrain.host_copies import on_device

_SMALLEST = 1e-6
"""Rewards are left as they are while the standard deviation is below this: returns that are all equal."""


class RewardScaler:
    """Clips and scales the rewards of each batch, in float64.

    Args:
        num_envs: envs in the whole run.
        discount: gamma.
        clip: rewards are clipped to +- this first; None leaves them.
        normalize: whether rewards are divided by the standard deviation.
        device: where batches are.
    """

    def __init__(
        self, num_envs: int, discount: float, clip: float | None, normalize: bool, device: torch.device | str = "cpu"
    ):
        self.discount, self.clip, self.normalize = discount, clip, normalize
        self.running_return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.mean, self.variance, self.count = (torch.zeros((), dtype=torch.float64, device=device) for _ in range(3))

    @torch.no_grad()
    def __call__(self, reward: Tensor, ended: Tensor, valid: Tensor, lanes: np.ndarray) -> Tensor:
        """Learn from a batch's rewards and return them scaled.

        Args:
            reward: float32 [T, B], raw.
            ended: bool [T, B], terminated or truncated.
            valid: bool [T, B].
            lanes: int64 [fragments], the lane of each block of B / fragments columns; a lane that comes twice has its
                fragments in the order of collection.

        Returns:
            float32 [T, B].
        """
        if self.clip is not None:
            reward = reward.clamp(-self.clip, self.clip)
        if not self.normalize:
            return reward
        num_columns = reward.shape[1] // len(lanes)
        returns = torch.empty(reward.shape, dtype=torch.float64, device=reward.device)
        for blocks in _rounds(lanes):
            env = on_device((lanes[blocks, None] * num_columns + np.arange(num_columns)).ravel(), reward.device)
            column = on_device((blocks[:, None] * num_columns + np.arange(num_columns)).ravel(), reward.device)
            keep = self.discount * (~ended[:, column]).double()
            carried, last = self._returns(reward[:, column].double(), keep, valid[:, column], self.running_return[env])
            returns[:, column] = carried
            self.running_return[env] = last
        self._merge(returns, valid)
        deviation = self.variance.sqrt()
        return (reward / deviation.masked_fill(~(deviation > _SMALLEST), 1)).float()

    def _returns(self, reward: Tensor, keep: Tensor, valid: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """Sum forward in time; `keep` is what of a row's sum goes into the next row, `carry` into the first."""
        rows = reward.masked_fill(~valid, 0).unbind()
        result = torch.empty_like(reward)
        for t, row in enumerate(rows):
            torch.add(row, carry, out=result[t])
            carry = result[t] * keep[t]
        return result, carry

    def _merge(self, returns: Tensor, valid: Tensor) -> None:
        """Add the returns of valid rows to the statistics.

        Source: Chan, Golub and LeVeque 1979, equations 2.1.
        """
        weight = valid.double()
        count = weight.sum()
        batch_mean = (returns * weight).sum() / count.clamp(min=1)
        squares = ((returns - batch_mean).square() * weight).sum()
        total = self.count + count
        delta = batch_mean - self.mean
        squares = squares + self.variance * self.count + delta.square() * self.count * count / total.clamp(min=1)
        self.mean.add_(delta * count / total.clamp(min=1))
        self.variance.copy_(squares / total.clamp(min=1))
        self.count.copy_(total)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the statistics and of each env's running return."""
        return {name: getattr(self, name).clone() for name in ("running_return", "mean", "variance", "count")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned.

        The statistics hold for any number of envs. The running returns are of certain envs: where their number was
        another, every env begins anew.
        """
        for statistic in ("mean", "variance", "count"):
            getattr(self, statistic).copy_(state[statistic])
        if state["running_return"].shape == self.running_return.shape:
            self.running_return.copy_(state["running_return"])
        else:
            self.running_return.zero_()

    def restart(self, envs: slice) -> None:
        """Forget the running returns of envs that were reset between two batches."""
        self.running_return[envs] = 0


def _rounds(lanes: np.ndarray) -> list[np.ndarray]:
    """Split block numbers so that no round has a lane twice: the k-th round holds each lane's k-th block."""
    seen: dict[int, int] = {}
    occurrence = []
    for lane in lanes.tolist():
        occurrence.append(seen.get(lane, 0))
        seen[lane] = occurrence[-1] + 1
    numbers = np.array(occurrence)
    return [np.flatnonzero(numbers == k) for k in range(numbers.max() + 1)]
