"""The firing rule, case by case and as properties; then the adaptive delay in a small closed-loop simulation."""

from __future__ import annotations

import heapq
import math
import random
import timeit

import pytest

from rltrain.errors import ConfigError
from rltrain.inference.batcher import AdaptiveDelay, BatcherSettings, Fire, Wait, decide

SETTINGS = BatcherSettings(max_batch_size=32, preferred_batch_sizes=(), max_queue_delay_us=100)
PREFERRED = BatcherSettings(max_batch_size=32, preferred_batch_sizes=(8, 16), max_queue_delay_us=100)


@pytest.mark.parametrize(
    ("sizes", "age_us", "num_waiting", "num_live", "settings", "expected"),
    [
        pytest.param([16, 16], 0, 2, 9, SETTINGS, Fire(2, "full"), id="exactly full"),
        pytest.param([16, 8, 16], 0, 3, 9, SETTINGS, Fire(2, "full"), id="the next would not fit"),
        pytest.param([32, 1], 0, 2, 9, SETTINGS, Fire(1, "full"), id="the first fills it"),
        pytest.param([16, 16], 500, 2, 2, SETTINGS, Fire(2, "full"), id="full comes before delay and all waiting"),
        pytest.param([8], 0, 1, 9, PREFERRED, Fire(1, "preferred"), id="a preferred size"),
        pytest.param([4, 4, 4, 4, 4], 0, 5, 9, PREFERRED, Fire(4, "preferred"), id="the largest preferred size"),
        pytest.param([4, 4, 4], 0, 3, 9, PREFERRED, Fire(2, "preferred"), id="the rest stays"),
        pytest.param([4, 6], 0, 2, 9, PREFERRED, Wait(100), id="a preferred size is met exactly or not at all"),
        pytest.param([4, 4], 0, 2, 2, PREFERRED, Fire(2, "preferred"), id="preferred comes before all waiting"),
        pytest.param([4, 4, 4], 100, 3, 9, PREFERRED, Fire(3, "delay"), id="after the delay nothing is trimmed"),
        pytest.param([4], 99, 1, 9, SETTINGS, Wait(1), id="waits for the rest of the delay"),
        pytest.param([4], 100, 1, 9, SETTINGS, Fire(1, "delay"), id="the delay is over"),
        pytest.param([4, 4], 100, 2, 2, SETTINGS, Fire(2, "delay"), id="delay comes before all waiting"),
        pytest.param([4, 4], 0, 2, 2, SETTINGS, Fire(2, "all_waiting"), id="all wait"),
        pytest.param([4], 0, 2, 2, SETTINGS, Fire(1, "all_waiting"), id="all wait, one for another version"),
        pytest.param([4], 0, 1, 0, SETTINGS, Fire(1, "all_waiting"), id="the requester died"),
    ],
)
def test_decide_by_hand_gives_the_expected_decision(sizes, age_us, num_waiting, num_live, settings, expected):
    assert decide(sizes, age_us, num_waiting, num_live, settings) == expected


@pytest.mark.parametrize("sizes", [[4], [4, 4], [4, 4, 4]])
def test_decide_without_delay_fires_all_that_is_pending(sizes):
    settings = BatcherSettings(max_batch_size=32, preferred_batch_sizes=(4,), max_queue_delay_us=0)
    assert decide(sizes, 0, len(sizes), 9, settings) == Fire(len(sizes), "delay")


@pytest.mark.parametrize("sizes", [[], [33], [33, 1]])
def test_decide_with_nothing_that_fits_raises(sizes):
    with pytest.raises(ValueError, match="max_batch_size = 32"):
        decide(sizes, 0, len(sizes), 9, SETTINGS)


def test_settings_out_of_range_are_all_named():
    with pytest.raises(ConfigError) as caught:
        BatcherSettings(max_batch_size=8, preferred_batch_sizes=(4, 9, 0), max_queue_delay_us=-1)
    assert len(caught.value.problems) == 3
    assert "preferred_batch_sizes holds 9" in str(caught.value)


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_decide_on_random_queues_keeps_its_promises(is_adaptive):
    rng = random.Random(3)
    for _ in range(3000):
        limit = rng.randint(1, 64)
        preferred = tuple(rng.randint(1, limit) for _ in range(rng.randint(0, 3)))
        settings = BatcherSettings(limit, preferred, rng.choice([0, 50, 1000]), is_adaptive)
        adaptive = AdaptiveDelay(settings) if is_adaptive else None
        for _ in range(rng.choice([0, 20])):
            adaptive and adaptive.observe(rng.randint(1, limit), rng.expovariate(0.01))
        sizes = [rng.randint(1, limit) for _ in range(rng.randint(1, 12))]
        num_waiting = len(sizes) + rng.randint(0, 2)
        num_live = num_waiting + rng.randint(0, 3)
        age_us = rng.uniform(0, 1200)
        decision = decide(sizes, age_us, num_waiting, num_live, settings, adaptive)
        if isinstance(decision, Fire):
            assert 1 <= decision.num_requests <= len(sizes)
            assert sum(sizes[: decision.num_requests]) <= limit
            if decision.reason == "delay":
                assert decision.num_requests == len(sizes)
                assert is_adaptive or age_us >= settings.max_queue_delay_us
        else:
            assert num_waiting < num_live
            assert sum(sizes) < limit
            assert 0 < decision.wait_us <= settings.max_queue_delay_us - age_us


def test_decide_in_the_common_case_is_cheap():
    sizes = [8] * 16
    seconds = min(timeit.repeat(lambda: decide(sizes, 10.0, 16, 32, PREFERRED), number=500, repeat=20)) / 500
    assert seconds < 10e-6  # 0.5 to 1.5 us on an idle core; the rest is room for a busy one


class ClosedLoop:
    """Requesters that come back some time after their reply, and a server whose time is alpha + beta * rows."""

    def __init__(self, num_requesters, rows, alpha_us, beta_us, return_us, seed=0):
        self.num_requesters, self.rows = num_requesters, rows
        self.alpha_us, self.beta_us, self.return_us = alpha_us, beta_us, return_us
        self.rng = random.Random(seed)

    def rows_per_us(self, settings, num_batches=4000):
        """Serve; return the throughput of the second half, and the longest time that the idle server waited."""
        adaptive = AdaptiveDelay(settings) if settings.adaptive else None
        away = [self.return_us(self.rng) for _ in range(self.num_requesters)]
        heapq.heapify(away)
        queue: list[float] = []
        now_us, served, started, longest_wait_us = 0.0, 0, (0.0, 0), 0.0
        for batch in range(num_batches):
            if batch == num_batches // 2:
                started = now_us, served
            idle_since = None
            while True:
                while away and away[0] <= now_us:
                    queue.append(heapq.heappop(away))
                if not queue:
                    now_us = away[0]
                    continue
                idle_since = now_us if idle_since is None else idle_since
                decision = decide(
                    [self.rows] * len(queue), now_us - queue[0], len(queue), self.num_requesters, settings, adaptive
                )
                if isinstance(decision, Fire):
                    break
                now_us = min([now_us + max(decision.wait_us, 0.01), *away[:1]])  # a clock moves on
            longest_wait_us = max(longest_wait_us, now_us - idle_since)
            count = decision.num_requests
            service_us = (self.alpha_us + self.beta_us * count * self.rows) * self.rng.uniform(0.95, 1.05)
            now_us += service_us
            served += count
            del queue[:count]
            for _ in range(count):
                heapq.heappush(away, now_us + self.return_us(self.rng))
            if adaptive is not None:
                adaptive.observe(count * self.rows, service_us)
        self.adaptive = adaptive
        return (served - started[1]) * self.rows / (now_us - started[0]), longest_wait_us


LOADS = {
    "waiting pays: quick requesters, dear start-up": (16, 8, 300.0, 0.5, lambda rng: rng.uniform(40, 80)),
    "balanced: requesters about as quick as the server": (8, 8, 60.0, 1.0, lambda rng: rng.expovariate(1 / 150)),
    "waiting is a loss: few slow requesters": (3, 8, 50.0, 0.5, lambda rng: rng.gammavariate(4, 500)),
    "quick requesters, dear rows": (16, 8, 50.0, 4.0, lambda rng: rng.expovariate(1 / 30)),
    "steady requesters of one speed": (6, 32, 120.0, 0.1, lambda rng: 90.0),
    "sixteen slow and uneven": (16, 8, 120.0, 0.2, lambda rng: math.exp(rng.uniform(math.log(1e3), math.log(2e4)))),
    "one in eight is slow": (16, 4, 100.0, 0.2, lambda rng: 800.0 if rng.random() < 0.125 else 50.0),
}


def best_static(load):
    return max(
        ClosedLoop(*load).rows_per_us(BatcherSettings(10_000, (), delay_us))[0]
        for delay_us in (0, 30, 100, 300, 1000, 3000)
    )


@pytest.mark.parametrize("name", LOADS)
def test_adaptive_delay_reaches_the_best_static_delay(name):
    throughput, _ = ClosedLoop(*LOADS[name]).rows_per_us(BatcherSettings(10_000, (), 3000, adaptive=True))
    assert throughput >= 0.95 * best_static(LOADS[name])


def test_adaptive_delay_beats_the_wrong_static_delay_on_both_sides():
    dear, slow = (LOADS[name] for name in list(LOADS)[0:3:2])
    adaptive = BatcherSettings(10_000, (), 3000, adaptive=True)
    assert ClosedLoop(*dear).rows_per_us(adaptive)[0] > 1.2 * ClosedLoop(*dear).rows_per_us(BatcherSettings(10_000))[0]
    too_long = BatcherSettings(10_000, (), 3000)
    assert ClosedLoop(*slow).rows_per_us(adaptive)[0] > 1.2 * ClosedLoop(*slow).rows_per_us(too_long)[0]


def test_adaptive_delay_estimates_the_line_and_the_return_time():
    loop = ClosedLoop(*LOADS["balanced: requesters about as quick as the server"])
    loop.rows_per_us(BatcherSettings(10_000, (), 3000, adaptive=True))
    assert loop.adaptive.alpha_us == pytest.approx(60, rel=0.25)
    assert loop.adaptive.beta_us == pytest.approx(1, rel=0.25)
    assert loop.adaptive.return_us == pytest.approx(150, rel=0.4)


def test_adaptive_delay_measures_returns_only_while_the_server_waits():
    settings = BatcherSettings(10_000, (), 3000, adaptive=True)
    adaptive = AdaptiveDelay(settings)
    assert decide([8], 0, 1, 4, settings, adaptive) == Wait(3000)
    assert isinstance(decide([8, 8], 50, 2, 4, settings, adaptive), Fire), "nothing is known of what a batch costs"
    assert adaptive.return_us == 150  # three were away for 50 us, one came
    decide([8, 8, 8], 60, 3, 4, settings, adaptive)
    assert adaptive.return_us == 150


@pytest.mark.parametrize("max_queue_delay_us", [0, 25])
def test_adaptive_delay_stays_below_the_configured_delay(max_queue_delay_us):
    load = next(iter(LOADS.values()))
    settings = BatcherSettings(10_000, (), max_queue_delay_us, adaptive=True)
    _, longest_wait_us = ClosedLoop(*load).rows_per_us(settings, num_batches=500)
    assert longest_wait_us <= max_queue_delay_us + 0.02


def test_adaptive_delay_is_deterministic():
    load = LOADS["one in eight is slow"]
    settings = BatcherSettings(10_000, (), 3000, adaptive=True)
    assert ClosedLoop(*load).rows_per_us(settings) == ClosedLoop(*load).rows_per_us(settings)
