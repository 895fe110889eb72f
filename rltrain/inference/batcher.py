"""When the inference server fires a batch: times and counts in, a decision out.

Owns: the rule, and the estimates that shorten the wait. Called by the inference server between two batches.
No clock, no thread, no process, no torch: every case can be tested by hand.

A request is one env group's rows; requests are answered oldest first, so that none is starved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from rltrain.errors import ConfigError

Reason = Literal["full", "preferred", "delay", "all_waiting"]


class Fire(NamedTuple):
    """Run the oldest `num_requests` requests now, for `reason`."""

    num_requests: int
    reason: Reason


class Wait(NamedTuple):
    """Sleep on the doorbell for at most `wait_us` microseconds, then decide anew."""

    wait_us: float


Decision = Fire | Wait


@dataclass(frozen=True)
class BatcherSettings:
    """The settings of dynamic batching, named as those of Triton's dynamic batcher.

    | setting or rule | here, compared with Triton |
    |---|---|
    | `max_batch_size` | same: rows of a batch, not requests |
    | `preferred_batch_sizes` | same: rows; the oldest requests that make up exactly one fire at once, the rest stays |
    | `max_queue_delay_us` | same: from the arrival of the oldest request; then all that is pending goes, untrimmed |
    | delay of 0 | differs: everything pending goes at once, never trimmed to a preferred size |
    | every live requester waits | differs: fires at once; a server that is open to anyone cannot know this |
    | `adaptive` | differs: has no counterpart |
    | priorities, queue limits, request timeouts | not here: a requester has one request in flight, none is refused |

    Args:
        max_batch_size: most rows in one batch, >= 1.
        preferred_batch_sizes: rows, each in [1, max_batch_size].
        max_queue_delay_us: longest wait of the oldest request for a fuller batch, in microseconds, >= 0.
        adaptive: whether `AdaptiveDelay` shortens the wait where waiting does not pay.

    Raises:
        ConfigError: a value is out of range; all are named.
    """

    max_batch_size: int
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        problems = []
        if self.max_batch_size < 1:
            problems.append(f"pipeline.max_batch_size = {self.max_batch_size}: a batch has at least 1 row.")
        for rows in self.preferred_batch_sizes:
            if not 1 <= rows <= self.max_batch_size:
                problems.append(
                    f"pipeline.preferred_batch_sizes holds {rows}, outside 1 to pipeline.max_batch_size = "
                    f"{self.max_batch_size}. Remove it or raise max_batch_size."
                )
        if self.max_queue_delay_us < 0:
            problems.append(f"pipeline.max_queue_delay_us = {self.max_queue_delay_us}: use 0 or more.")
        if problems:
            raise ConfigError(problems)


def decide(
    sizes: list[int],
    oldest_age_us: float,
    num_waiting: int,
    num_live: int,
    settings: BatcherSettings,
    adaptive: AdaptiveDelay | None = None,
) -> Decision:
    """Say whether to fire, what, and why; else how long to wait. Called when the device is free.

    Args:
        sizes: rows of each request that may share a batch, oldest first; not empty, each at most `max_batch_size`.
        oldest_age_us: time since the first of them arrived, in microseconds.
        num_waiting: all requests that wait, those of other weight versions included.
        num_live: requesters that are alive.
        settings: the rule's settings.
        adaptive: shortens the wait; None leaves it at `max_queue_delay_us`.

    Returns:
        `Fire` with at least one request, or `Wait` with `0 < wait_us <= max_queue_delay_us`.

    Raises:
        ValueError: there is no request, or the oldest is larger than `max_batch_size`.
    """
    decision = _decide(sizes, oldest_age_us, num_waiting, num_live, settings, adaptive)
    if adaptive is not None and isinstance(decision, Fire):
        adaptive.end_window()
    return decision


def _decide(
    sizes: list[int],
    oldest_age_us: float,
    num_waiting: int,
    num_live: int,
    settings: BatcherSettings,
    adaptive: AdaptiveDelay | None,
) -> Decision:
    num_requests, rows, limit = len(sizes), sum(sizes), settings.max_batch_size
    if rows >= limit or num_requests == 0:
        return Fire(_longest_prefix(sizes, limit), "full")
    left_us = settings.max_queue_delay_us - oldest_age_us
    if left_us > 0 and settings.preferred_batch_sizes:
        preferred = _preferred_prefix(sizes, settings.preferred_batch_sizes)
        if preferred:
            return Fire(preferred, "preferred")
    if left_us <= 0:
        return Fire(num_requests, "delay")
    if num_waiting >= num_live:
        return Fire(num_requests, "all_waiting")
    if adaptive is not None:
        left_us = min(left_us, adaptive.worth_waiting_us(num_requests, num_waiting, num_live, oldest_age_us))
        if left_us <= 0:
            return Fire(num_requests, "delay")
    return Wait(left_us)


def _longest_prefix(sizes: list[int], limit: int) -> int:
    """Number of oldest requests that fit into `limit` rows."""
    rows = count = 0
    for size in sizes:
        rows += size
        if rows > limit:
            break
        count += 1
    if count == 0:
        raise ValueError(f"the oldest request needs 1 to max_batch_size = {limit} rows; sizes: {sizes}")
    return count


def _preferred_prefix(sizes: list[int], preferred: tuple[int, ...]) -> int:
    """Number of oldest requests that make up the largest preferred size exactly, 0 when none does."""
    rows, best = 0, 0
    for count, size in enumerate(sizes, 1):
        rows += size
        if rows in preferred:
            best = count
    return best


WARM_UP_BATCHES = 8
EXPLORE_EVERY = 64
HYSTERESIS = 0.25
MEMORY = 0.98
"""Weight that an estimate keeps with each new batch: about the last 50 batches count."""


class AdaptiveDelay:
    """Shortens the wait to where one more request pays, from what it saw so far.

    A batch of b requests takes alpha + beta * rows. Waiting 1 / lambda for one more raises the server's throughput
    only while `b / lambda < alpha`: one start-up time saved against b requests held up. Requests come from requesters
    that are away, each back after `return_us` on average, so lambda = away / return_us, and the rule reads
    `return_us < alpha * away / b`. Requesters of one speed come back together, faster than their mean says; so a wait
    also goes on while the gaps between its arrivals are below half of alpha / b. Either way it ends when the time that
    would have paid has passed since the last arrival.

    The return time is measured while the server waits, and only then: requests that came during a batch tell
    merely that they came. Hence every 64th batch, and the first eight, wait for one more as if it paid. The figures in
    use follow the estimates only when these are off by 25 %, so that the delay does not flutter.

    Args:
        settings: `max_queue_delay_us` stays the upper bound.

    Concurrency: for one thread. Deterministic in the sequence of calls.
    """

    def __init__(self, settings: BatcherSettings):
        self.settings = settings
        self.alpha_us: float = 0.0
        self.beta_us: float = 0.0
        self.return_us: float | None = None
        self.num_batches = 0
        self._fit = _LineFit()
        self._away_us, self._returns = 0.0, 0.0
        self._window: tuple[int, int, float] | None = None
        self._first_look = (0, 0.0)
        self._last_arrival_us, self._last_gap_us = 0.0, 0.0
        self._num_windows = 0

    def observe(self, num_rows: int, service_us: float) -> None:
        """Learn from a batch that was served.

        Args:
            num_rows: its rows.
            service_us: time from the gather to the replies, in microseconds.
        """
        self.num_batches += 1
        self._fit.add(num_rows, service_us)
        alpha_us, self.beta_us = self._fit.line()
        self.alpha_us = _follow(self.alpha_us, alpha_us)

    def worth_waiting_us(self, num_requests: int, num_waiting: int, num_live: int, oldest_age_us: float) -> float:
        """Return for how long a further request is worth waiting for, in microseconds; 0 or less: not at all."""
        self._watch(num_waiting, num_live, oldest_age_us)
        saving_us = self.alpha_us / num_requests
        worth_us = saving_us * (num_live - num_waiting)
        if num_waiting <= self._first_look[0]:  # nothing has come yet while it waits
            if self.num_batches < WARM_UP_BATCHES:
                return self.settings.max_queue_delay_us
            if self._num_windows % EXPLORE_EVERY == 0:
                return worth_us - (oldest_age_us - self._last_arrival_us)
        if self.return_us is not None and self.return_us > worth_us:
            worth_us = saving_us if 2 * self._gap_us(num_waiting) < saving_us else 0.0
        return worth_us - (oldest_age_us - self._last_arrival_us)

    def _gap_us(self, num_waiting: int) -> float:
        """The larger of the last and the mean gap between arrivals in this window; infinite for fewer than two."""
        first_waiting, first_age_us = self._first_look
        arrivals = num_waiting - first_waiting
        if arrivals < 2:
            return float("inf")
        return max(self._last_gap_us, (self._last_arrival_us - first_age_us) / arrivals)

    def end_window(self) -> None:
        """Say that a batch fires: what arrives from now on comes while the device is busy."""
        self._window = None
        self._num_windows += 1

    def _watch(self, num_waiting: int, num_live: int, oldest_age_us: float) -> None:
        """Count arrivals, and the time that requesters were away, since the last look in this window."""
        if self._window is None:
            self._first_look = (num_waiting, oldest_age_us)
            self._last_arrival_us, self._last_gap_us = oldest_age_us, 0.0
        else:
            seen_waiting, seen_away, seen_age_us = self._window
            arrivals = max(0, num_waiting - seen_waiting)
            self._away_us = self._away_us * MEMORY**arrivals + seen_away * max(0.0, oldest_age_us - seen_age_us)
            self._returns = self._returns * MEMORY**arrivals + arrivals
            if arrivals:
                self._last_gap_us = (oldest_age_us - self._last_arrival_us) / arrivals
                self._last_arrival_us = oldest_age_us
            self.return_us = _follow(self.return_us, self._away_us / max(self._returns, 0.5))
        self._window = (num_waiting, num_live - num_waiting, oldest_age_us)


def _follow(used: float | None, estimate: float) -> float:
    """Return the figure to use: the one in use until the estimate is off by more than the hysteresis."""
    if used is None or abs(estimate - used) > HYSTERESIS * used:
        return estimate
    return used


class _LineFit:
    """Least squares of service time on rows, older batches fading."""

    def __init__(self) -> None:
        self.weight = self.rows = self.rows2 = self.time = self.rows_time = 0.0

    def add(self, rows: int, time_us: float) -> None:
        if self.weight > WARM_UP_BATCHES / 2:
            time_us = min(time_us, 4 * self.time / self.weight)  # one page fault or pause must not bend the line
        self.weight = self.weight * MEMORY + 1
        self.rows = self.rows * MEMORY + rows
        self.rows2 = self.rows2 * MEMORY + rows * rows
        self.time = self.time * MEMORY + time_us
        self.rows_time = self.rows_time * MEMORY + rows * time_us

    def line(self) -> tuple[float, float]:
        """Return alpha and beta, both >= 0.

        Without batches of different sizes all counts as alpha: then waiting looks good, is tried, and brings the
        different sizes.
        """
        mean_rows, mean_time = self.rows / self.weight, self.time / self.weight
        variance = self.rows2 / self.weight - mean_rows**2
        covariance = self.rows_time / self.weight - mean_rows * mean_time
        if variance <= 1e-6 * mean_rows**2:
            return mean_time, 0.0
        beta = min(max(covariance / variance, 0.0), mean_time / mean_rows)
        return mean_time - beta * mean_rows, beta
