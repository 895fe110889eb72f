"""Advantages and value targets: GAE and V-trace.

Layout. Time-major, NEXT_STEP form: row t holds the reward and the flags of the action chosen on observation t, row
t+1 the observation that came of it, the true final one where an episode ended. So `value[t + 1]` is the bootstrap
value of row t, also at a truncation; the row after an end is the env's reset, has `valid` False, and gets advantage 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gae(
    reward: Tensor, value: Tensor, terminated: Tensor, truncated: Tensor, discount: float, gae_lambda: float,
    valid: Tensor | None = None,
) -> Tensor:
    """Estimate advantages; the value targets are `advantage + value[:-1]`.

    Args:
        reward: float [T, B].
        value: float [T+1, B].
        terminated: bool [T, B]; the value after it is taken as 0, also when `truncated` is set.
        truncated: bool [T, B]; bootstraps from `value[t + 1]`.
        discount: gamma, in [0, 1].
        gae_lambda: lambda, in [0, 1].
        valid: bool [T, B]; None: all rows are.

    Returns:
        [T, B], 0 on rows that are not valid.

    Source: Schulman et al. 2016 (arXiv:1506.02438), equations 11 and 16; cut at both kinds of end.
    """
    delta = reward + discount * value[1:].masked_fill(terminated, 0) - value[:-1]
    decay = (discount * gae_lambda) * (~(terminated | truncated)).to(delta.dtype)
    return _backward_sum(delta, decay, valid)


@torch.no_grad()
def vtrace(
    log_ratio: Tensor, reward: Tensor, value: Tensor, terminated: Tensor, truncated: Tensor, discount: float,
    rho_clip: float = 1.0, c_clip: float = 1.0, trace_lambda: float = 1.0, valid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Estimate value targets and policy-gradient advantages from another policy's data.

    Args:
        log_ratio: float [T, B], target minus behaviour log-probability of the action.
        reward: float [T, B].
        value: float [T+1, B], of the target policy.
        terminated: bool [T, B]; the value after it is taken as 0, also when `truncated` is set.
        truncated: bool [T, B]; bootstraps from `value[t + 1]`.
        discount: gamma, in [0, 1].
        rho_clip: rho bar, upper limit of the ratio in the temporal differences.
        c_clip: c bar, upper limit of the ratio in the traces.
        trace_lambda: extra decay of the traces (Remark 2).
        valid: bool [T, B]; None: all rows are.

    Returns:
        (value targets v_s [T, B], advantages `r + gamma * v_{s+1} - V(s)` [T, B], not multiplied by rho). On rows
        that are not valid: the value itself, and 0. After an end and the last row, v_{s+1} is the bootstrap value.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), equation 1 in the recursive form of Remark 1; section 4.2.
    """
    ratio = log_ratio.exp()
    bootstrap = value[1:].masked_fill(terminated, 0)
    ended = terminated | truncated
    delta = ratio.clamp(max=rho_clip) * (reward + discount * bootstrap - value[:-1])
    decay = (discount * trace_lambda) * ratio.clamp(max=c_clip).masked_fill(ended, 0)
    correction = _backward_sum(delta, decay, valid)  # v_s - V(s)
    value_target = value[:-1] + correction
    next_target = bootstrap.clone()
    next_target[:-1] = torch.where(ended[:-1], bootstrap[:-1], value_target[1:])
    advantage = reward + discount * next_target - value[:-1]
    return value_target, advantage if valid is None else advantage.masked_fill(~valid, 0)


def _backward_sum(delta: Tensor, decay: Tensor, valid: Tensor | None) -> Tensor:
    """Solve x[t] = delta[t] + decay[t] * x[t+1] with x[T] = 0, and x[t] = 0 where not valid, in log2(T) steps.

    After the step with shift s, row t holds its sum over 2s rows, and `decay[t]` the product over them: the parallel
    scan of Hillis and Steele 1986. For 128 rows of 8 it takes a quarter of the time of a loop over rows.
    """
    total = delta.clone()
    if valid is not None:
        total.masked_fill_(~valid, 0)
        decay = decay.masked_fill(~valid, 0)
    num_steps, shift = total.shape[0], 1
    while shift < num_steps:
        head, next_head = num_steps - shift, max(0, num_steps - 2 * shift)
        total[:head] = torch.addcmul(total[:head], decay[:head], total[shift:])
        decay = decay[:next_head] * decay[shift : shift + next_head]
        shift *= 2
    return total
