from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rltrain.shm.counters import _STATE_AT, ROW_WORDS, STATES, CounterRow
from rltrain.telemetry import ledger as ledger_module
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.verdict import judge
from tests.telemetry.samples import RING, Clock, row

pytestmark = pytest.mark.timeout(60)


def spend(made: CounterRow, **seconds: float) -> None:
    """Add time to states, as `enter` would, and begin the running state anew in the far future."""
    for state, s in seconds.items():
        made._words[_STATE_AT + STATES[made.role].index(state)] += int(s * 1e9)
    made._words[3] = 2**62


@pytest.fixture
def clock(monkeypatch):
    """A clock of the ledger that the test moves."""
    moved = Clock()
    monkeypatch.setattr(ledger_module, "time", moved)
    return moved


def test_ledger_sample_shares_are_differences_that_sum_to_one(clock):
    learner = row("learner")
    spend(learner, update=100)
    ledger = Ledger([("learner", learner)], lambda: RING)
    clock.now += 2
    spend(learner, update=0.5, wait_data=1.5)
    shares = ledger.sample().processes[0].shares
    assert shares["wait_data"] == 0.75
    assert shares["update"] == 0.25
    assert sum(shares.values()) == 1


def test_ledger_sample_running_state_counts_before_it_is_left():
    actor = row("actor")
    actor.enter("wait_slot")
    ledger = Ledger([("actor-0", actor)], lambda: RING)
    assert ledger.sample().processes[0].shares["wait_slot"] == 1


def test_ledger_sample_speed_between_rare_batches_holds_and_then_falls(clock):
    learner = row("learner")
    ledger = Ledger([("learner", learner)], lambda: RING)
    speeds = []
    for batches in (0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2):  # looks a second apart
        clock.now += 1
        learner.set("env_steps", 3000 * batches)
        speeds.append(ledger.sample().env_steps_per_s)
    assert speeds == [0, 0, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 750, 600]


def test_ledger_sample_speed_is_over_the_interval_and_leaves_out_resumed_steps(clock):
    learner = row("learner")
    ledger = Ledger([("learner", learner)], lambda: RING, resumed_env_steps=50_000, resumed_updates=400)
    clock.now += 2
    learner.set("env_steps", 51_000)
    learner.set("updates", 410)
    sample = ledger.sample()
    assert (sample.env_steps, sample.env_steps_per_s, sample.updates_per_s) == (51_000, 500, 5)
    clock.now += 4
    learner.set("env_steps", 55_000)
    assert ledger.sample().env_steps_per_s == 1000
    total = ledger.total()
    assert total.interval_s == 6
    assert total.env_steps_per_s == pytest.approx(5000 / 6)


def test_ledger_sample_return_is_none_until_an_episode_has_ended():
    learner = row("learner")
    learner.set("return_mean", float("nan"))
    ledger = Ledger([("learner", learner)], lambda: RING)
    assert ledger.sample().return_mean is None
    learner.set("episodes", 1)
    assert ledger.sample().return_mean is None
    learner.set("return_mean", -3.5)
    assert ledger.sample().return_mean == -3.5


def test_ledger_sample_quantiles_are_of_the_interval_alone():
    server, learner = row("inference"), row("learner")
    server.observe("queue_delay_us", 5000, count=1000)
    learner.observe("policy_lag_versions", 9, count=1000)
    ledger = Ledger([("inference", server), ("learner", learner)], lambda: RING)
    server.observe("queue_delay_us", 10, count=90)
    server.observe("queue_delay_us", 12, count=10)
    server.add("batches", 4)
    server.add("rows", 100)
    learner.observe("policy_lag_versions", 1, count=100)
    learner.observe("policy_lag_versions", 3, count=2)
    sample = ledger.sample()
    assert (sample.queue_delay_us_p50, sample.queue_delay_us_p95, sample.queue_delay_us_p99) == (10, 12, 12)
    assert (sample.policy_lag_p50, sample.policy_lag_p99) == (1, 3)
    assert sample.batch_size_mean_rows == 25
    assert sample.service_us_p50 is None
    assert sample.histograms["inference/queue_delay_us"].sum() == 100


def test_ledger_sample_row_without_a_process_is_booting():
    idle = CounterRow(np.zeros(ROW_WORDS, np.int64), "actor")
    process = Ledger([("actor-0", idle)], lambda: RING).sample().processes[0]
    assert (process.pid, process.cpu_percent, process.rss_bytes) == (0, None, None)
    assert process.shares["boot"] == 1


def test_ledger_sample_ended_process_has_no_shares_and_no_figures():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        actor = row("actor", pid=child.pid)
        actor.enter("wait_slot")
        ledger = Ledger([("actor-0", actor)], lambda: RING)
        alive = ledger.sample().processes[0]
        assert alive.rss_bytes > 0
        assert alive.cpu_percent is not None
    finally:
        child.kill()
        child.communicate(timeout=10)
    ledger.sample()
    gone = ledger.sample().processes[0]
    assert gone.shares == {}
    assert (gone.cpu_percent, gone.rss_bytes) == (None, None)


def test_ledger_total_has_what_an_ended_process_did_since_the_look_before():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        learner = row("learner", pid=child.pid)
        learner.enter("wait_data")
        ledger = Ledger([("learner", learner)], lambda: RING)
        ledger.sample()
        spend(learner, update=1000)  # and it ends
    finally:
        child.kill()
        child.communicate(timeout=10)
    shares = ledger.total().processes[0].shares
    assert shares["update"] > 0.9
    assert min(shares.values()) >= 0


def test_ledger_sample_restarted_process_adds_no_negative_time(clock):
    actor = row("actor")
    actor.enter("wait_slot")
    ledger = Ledger([("actor-0", actor)], lambda: RING)
    ledger.sample()
    spend(actor)  # the time of the state in which the first life died is lost
    spend(actor, env_step=2)
    actor.add("restarts")
    process = ledger.sample().processes[0]
    assert process.shares["env_step"] == 1
    assert min(process.shares.values()) == 0
    assert process.restarts == 1


def test_ledger_window_spans_the_last_ten_seconds(clock):
    learner = row("learner")
    ledger = Ledger([("learner", learner)], lambda: RING)
    for second in range(1, 31):
        clock.now += 1
        spend(learner, **{"update" if second > 20 else "wait_data": 1})
        ledger.sample()
    window = ledger.window()
    assert window.interval_s == 10
    assert window.processes[0].shares["update"] == 1
    assert ledger.total().processes[0].shares["update"] == pytest.approx(1 / 3)


def test_ledger_window_before_the_first_sample_is_empty_and_warming_up(clock):
    window = Ledger([("learner", row("learner")), ("actor-0", row("actor"))], lambda: RING).window()
    assert (window.interval_s, window.env_steps_per_s) == (0, 0)
    assert judge(window, "overlap").name == "warming up"


def test_ledger_window_ring_is_the_mean_over_the_looks(clock):
    ready = iter([0, 0, 3, 0, 3])
    ledger = Ledger([("learner", row("learner"))], lambda: {"free": 9, "ready": next(ready)})
    for _ in range(4):
        clock.now += 1
        ledger.sample()
    assert ledger.window().ring == {"free": 9, "ready": 1.5}
