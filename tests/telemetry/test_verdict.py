from __future__ import annotations

from dataclasses import replace

import pytest

from rltrain.telemetry.verdict import judge, judge_whole, silence
from tests.telemetry.samples import RING, sample

STARVED = {"wait_data": 0.4, "update": 0.58, "publish": 0.02}
BUSY = {"wait_data": 0.05, "update": 0.93, "publish": 0.02}
IDLE_SERVER = {"wait_request": 0.6, "batch_delay": 0.1, "gather": 0.1, "forward": 0.2}
STEPPING = {"env_step": 0.7, "wait_action": 0.25, "write": 0.05}
WAITING = {"env_step": 0.3, "wait_action": 0.65, "write": 0.05}
FULL_RING = {"free": 6, "writing": 2, "ready": 4, "reading": 0}


def name_of(learner, server=IDLE_SERVER, actor=STEPPING, schedule="async", slowdown=None, **figures):
    shares = {"learner": learner, "inference": server, "actor": actor}
    return judge(sample(shares, **figures), schedule, slowdown).name


CASES = {
    "weight-sync-bound": (
        {"learner": {"wait_data": 0.4, "update": 0.52, "publish": 0.08},
         "server": IDLE_SERVER | {"wait_request": 0.57, "load_weights": 0.03}},
        {"learner": {"wait_data": 0.4, "update": 0.54, "publish": 0.06},
         "server": IDLE_SERVER | {"wait_request": 0.57, "load_weights": 0.03}},
    ),
    "device-contention": (
        {"learner": BUSY, "slowdown": (1.4, 1.26)},
        {"learner": BUSY, "slowdown": (1.4, 1.24)},
    ),
    "copy-bound": (
        {"learner": {"wait_data": 0.05, "update": 0.79, "h2d": 0.16}},
        {"learner": {"wait_data": 0.05, "update": 0.81, "h2d": 0.14}},
    ),
    "replay-bound": (
        {"learner": {"wait_data": 0.05, "update": 0.79, "sample": 0.16}},
        {"learner": {"wait_data": 0.05, "update": 0.81, "sample": 0.14}},
    ),
    "learner-bound": (
        {"learner": {"wait_data": 0.09, "update": 0.91}},
        {"learner": {"wait_data": 0.11, "update": 0.89}},
    ),
    "prefetch-bound": (
        {"learner": STARVED, "ring": FULL_RING},
        {"learner": STARVED, "ring": FULL_RING | {"free": 8, "ready": 2}},
    ),
    "staleness-gated": (
        {"learner": STARVED, "actor": {"env_step": 0.6, "wait_weights": 0.11, "wait_action": 0.29}},
        {"learner": STARVED, "actor": {"env_step": 0.6, "wait_weights": 0.09, "wait_action": 0.31}},
    ),
    "inference-bound": (
        {"learner": STARVED, "actor": WAITING, "server": {"wait_request": 0.13, "forward": 0.87}},
        {"learner": STARVED, "actor": WAITING, "server": {"wait_request": 0.17, "forward": 0.83}},
    ),
    "env-bound": (
        {"learner": STARVED, "actor": {"env_step": 0.5, "wait_action": 0.45, "write": 0.05}},
        {"learner": STARVED, "actor": {"env_step": 0.45, "wait_action": 0.5, "write": 0.05}},
    ),
    "batching-bound": (
        {"learner": STARVED, "actor": {"env_step": 0.47, "wait_action": 0.48, "write": 0.05}},
        {"learner": STARVED, "actor": {"env_step": 0.48, "wait_action": 0.47, "write": 0.05}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_judge_share_table_beyond_the_bound_gives_the_name(name):
    assert name_of(**CASES[name][0]) == name


@pytest.mark.parametrize("name", CASES)
def test_judge_share_table_within_the_bound_gives_another_name(name):
    assert name_of(**CASES[name][1]) != name


def test_judge_long_queue_at_a_busy_server_is_inference_bound():
    server = {"wait_request": 0.3, "batch_delay": 0.1, "forward": 0.6}
    long_queue = {"queue_delay_us_p95": 210.0, "service_us_p50": 100.0}
    assert name_of(STARVED, server, **long_queue) == "inference-bound"
    assert name_of(STARVED, server, **long_queue | {"queue_delay_us_p95": 190.0}) != "inference-bound"


def test_judge_long_queue_at_a_waiting_server_is_the_batch_window():
    server = {"wait_request": 0.2, "batch_delay": 0.6, "forward": 0.2}
    long_queue = {"queue_delay_us_p95": 900.0, "service_us_p50": 100.0}
    assert name_of(STARVED, server, WAITING, **long_queue) == "batching-bound"


def test_judge_actors_that_run_the_policy_are_inference_bound_without_a_server():
    shares = {"learner": STARVED, "actor": {"env_step": 0.3, "forward": 0.6, "write": 0.1}}
    assert judge(sample(shares), "overlap").name == "inference-bound"
    shares["actor"] = {"env_step": 0.4, "forward": 0.45, "write": 0.15}
    assert judge(sample(shares), "overlap").name == "inference-bound"
    shares["actor"] = {"env_step": 0.45, "forward": 0.45, "write": 0.1}
    assert judge(sample(shares), "overlap").name == "env-bound"


def test_judge_sync_that_alternates_says_it_is_by_design_and_advises_overlap():
    actor = {"env_step": 0.35, "wait_action": 0.1, "wait_weights": 0.55}
    shares = {"learner": {"wait_data": 0.5, "update": 0.5}, "inference": IDLE_SERVER, "actor": actor}
    verdict = judge(sample(shares), "sync")
    assert verdict.name == "staleness-gated"
    assert "by design" in verdict.line
    assert "overlap" in verdict.advice
    assert verdict.advice.endswith("2.0x")


def test_judge_boot_time_is_left_out_of_the_shares():
    assert name_of({"boot": 0.5, "wait_data": 0.04, "update": 0.46}) == "learner-bound"
    assert name_of({"boot": 0.5, "wait_data": 0.06, "update": 0.44}) != "learner-bound"


@pytest.mark.parametrize(("learner", "interval_s"), [(BUSY, 1.9), ({"boot": 0.95, "update": 0.05}, 10.0), ({}, 10.0)])
def test_judge_too_little_steady_time_is_warming_up(learner, interval_s):
    verdict = judge(sample({"learner": learner, "actor": STEPPING}, interval_s=interval_s), "overlap")
    assert verdict.line == verdict.finding == "warming up"
    assert verdict.runner_up is None


def test_judge_line_holds_name_evidence_and_advice_in_one_line():
    verdict = judge(sample({"learner": BUSY, "inference": IDLE_SERVER, "actor": STEPPING}), "overlap")
    assert verdict.line.startswith("learner-bound: the learner computes 93 % and waits for data 5 % of the time; ")
    assert verdict.advice in verdict.line
    assert "\n" not in verdict.line


def test_judge_env_bound_predicts_the_gain_of_more_actors():
    shares = {"learner": STARVED, "inference": IDLE_SERVER, "actor": STEPPING}
    assert "2 more actors, given free cores: about 1.3x" in judge(sample(shares, num_actors=6), "async").advice
    almost_fed = {"wait_data": 0.12, "update": 0.88}
    advice = judge(sample(shares | {"learner": almost_fed}, num_actors=2), "async").advice
    assert "1 more actor, given free cores: about 1.1x" in advice


def test_judge_more_actors_are_advised_only_where_cores_are_free():
    total = sample({"learner": STARVED, "inference": IDLE_SERVER, "actor": STEPPING}, num_actors=6)
    assert judge(total, "async", cores=8).advice.startswith("8 processes compute on 8 cores, so more actors bring")
    assert judge(total, "async", cores=9).advice == "1 more actor (1 free core): about 1.2x"
    assert judge(total, "async", cores=64).advice == "2 more actors (56 free cores): about 1.3x"


def test_judge_server_that_hardly_delays_is_hand_overs_between_processes():
    server = {"wait_request": 0.8, "batch_delay": 0.002, "forward": 0.198}
    total = sample({"learner": STARVED, "inference": server, "actor": WAITING})
    scarce = judge(total, "overlap", cores=2)
    assert scarce.name == "batching-bound"
    assert "actors wait 65 % for actions although the server is busy only 20 %: hand-overs" in scarce.evidence
    assert "4 processes compute on 2 cores" in scarce.evidence
    assert "envs_per_group" in scarce.advice
    assert 'pipeline.inference = "local"' in scarce.advice
    roomy = judge(total, "overlap", cores=8)
    assert "local" not in roomy.advice
    assert roomy.advice.endswith("up to 1.7x")
    assert "delays" not in scarce.line + roomy.line


def test_judge_batch_window_is_named_where_the_server_delays():
    server = {"wait_request": 0.4, "batch_delay": 0.4, "forward": 0.2}
    verdict = judge(sample({"learner": STARVED, "inference": server, "actor": WAITING}), "overlap", cores=2)
    assert "the server delays batches 40 %" in verdict.evidence
    assert "max_queue_delay_us" in verdict.advice


def test_judge_staleness_advises_what_the_schedule_has():
    shares = {"learner": STARVED, "actor": {"env_step": 0.6, "wait_weights": 0.4}, "inference": IDLE_SERVER}
    assert judge(sample(shares), "overlap").advice == 'pipeline.schedule = "async": up to 1.7x'
    assert judge(sample(shares), "async").advice == "a larger pipeline.max_policy_lag: up to 1.7x"


def test_judge_nothing_learned_is_no_verdict():
    hanging = {"learner": {"wait_data": 1.0}, "inference": IDLE_SERVER, "actor": {"env_step": 1.0}}
    assert judge(sample(hanging, env_steps_per_s=0.0), "overlap").line == "no verdict: nothing was learned"
    long_update = hanging | {"learner": {"update": 1.0}}
    assert judge(sample(long_update, env_steps_per_s=0.0), "overlap").name == "learner-bound"


def test_judge_whole_run_that_failed_learned_nothing_or_was_short_has_no_verdict():
    shares = {"learner": BUSY, "inference": IDLE_SERVER, "actor": STEPPING}
    assert judge_whole(sample(shares), "overlap", False).name == "learner-bound"
    assert judge_whole(sample(shares), "overlap", True).line == "no verdict: the run failed"
    nothing = sample(shares, env_steps_per_s=0.0)
    assert judge_whole(nothing, "overlap", False).line == "no verdict: nothing was learned"
    short = judge_whole(sample(shares, interval_s=1.0), "overlap", False)
    assert short.line == "no verdict: less than 2 s of steady running"


def test_judge_runner_up_is_the_rule_nearest_to_its_bound():
    near_copy_bound = {"wait_data": 0.02, "update": 0.85, "h2d": 0.13}
    assert judge(sample({"learner": near_copy_bound, "actor": WAITING}), "overlap").runner_up == "batching-bound"
    assert name_of(near_copy_bound, ring=RING) == "learner-bound"


def silent(name: str, silent_s: float, state: str):
    """Return a sample in which one process gave no sign of life for that long."""
    running = sample({"learner": STARVED, "inference": IDLE_SERVER, "actor": STEPPING})
    of_all = (replace(p, silent_s=silent_s, state=state) if p.name == name else p for p in running.processes)
    return replace(running, processes=tuple(of_all))


def test_silence_names_the_process_of_a_run_that_goes_on():
    verdict = silence(silent("actor-1", 12.4, "env_step"), is_learner_exempt=True)
    assert verdict.name == "stalled"
    assert "actor-1 gives no sign of life for 12 s, in state env_step" in verdict.line
    assert silence(silent("actor-1", 9.0, "env_step"), is_learner_exempt=False) is None


def test_silence_of_a_learner_that_may_be_compiling_is_none():
    compiling = silent("learner", 60.0, "update")
    assert silence(compiling, is_learner_exempt=True) is None
    assert "learner gives no sign of life for 60 s" in silence(compiling, is_learner_exempt=False).line


def test_judge_whole_run_is_not_named_after_who_was_silent_at_its_end():
    assert judge_whole(silent("learner", 12.4, "checkpoint"), "async", False).name == "env-bound"


def test_judge_advice_to_a_learner_that_binds_fits_what_it_learns_from():
    shares = {"learner": {"update": 0.95, "wait_data": 0.05}, "actor": {"env_step": 0.5, "wait_slot": 0.5}}
    assert "fewer epochs" in judge(sample(shares), "overlap").advice
    replayed = judge(sample(shares, replay_transitions=1_000), "overlap").advice
    assert "replay.updates_per_env_step" in replayed
    assert "epochs" not in replayed
