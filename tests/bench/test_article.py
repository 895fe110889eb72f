"""`rltrain bench article`: what is run, what is compared, what the report says; its env of uneven steps."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rltrain.bench.article import ARTICLE_ENVS, ArticleBench, Plan, many_envs, uneven_envs
from rltrain.bench.article_report import MANY, UNEVEN, best_loop
from rltrain.bench.page import page_of
from rltrain.bench.report import lines_of
from rltrain.bench.trial import Trial, as_options
from rltrain.config.load import load
from rltrain.envs.uneven import UnevenCartPole, make_env, make_parallel
from tests.bench.records import RECORD

PLAN = Plan(2, 1.0, (512, 2048, 4096), 4, 8, 30.0, True, (1, 2))


class Machine:
    """Stands for runs and loops: says what it was asked for, and answers by the options."""

    def __init__(self, misses=()):
        self.asked, self.misses = [], misses

    def trial(self, config, options, seconds, is_endless=True):
        options = dict(options)
        schedule = options.get("pipeline.schedule")
        self.asked.append((config.stem, schedule, options, is_endless))
        load(config, as_options(options)[1::2])  # every configuration is one that would run
        envs = options["actors.num_actors"] * options["actors.groups_per_actor"] * options["actors.envs_per_group"]
        rate = {"sync": 100.0, "overlap": 190.0, "async": 210.0}[schedule] * envs
        idle = {"sync": 0.6, "overlap": 0.1, "async": 0.05}[schedule]
        work = 0.9 - idle if schedule != "sync" or config.stem != "uneven" else 0.075 * options["algo.ppo.epochs"]
        ledger = {
            "learner": {"wait_data": idle, "update": work, "h2d": 0.01},
            "inference": {"forward": 0.2, "d2h": 0.1},
            "actor-0": {"wait_action": 0.25},
        }
        return Trial({
            "env_steps_per_s": rate, "ledger": ledger, "batch_size_mean_rows": envs / 2, "restarts": 0,
            "duration_s": 8.0, "reason": "time_limit" if schedule in self.misses else "target",
        })  # fmt: skip

    def loop(self, config, options, seconds, num_threads, to_target=False, is_plain=False):
        load(config, as_options(options)[1::2])
        self.asked.append((config.stem, f"loop {num_threads}", dict(options), not to_target))
        return {
            "env_steps_per_s": 1000.0 * num_threads, "update_share": 0.5, "busy_share": 0.6,
            "seconds_to_target": 16.0 if to_target else None,
        }


def bench_of(machine, plan=PLAN):
    bench = ArticleBench(plan, machine.trial, machine.loop)
    bench.run(lambda *_: None)
    return bench


def test_uneven_scenario_has_as_many_epochs_as_take_the_time_of_sampling():
    machine = Machine()
    bench = bench_of(machine)
    assert [options["algo.ppo.epochs"] for _, _, options, _ in machine.asked[:2]] == [4, 8]
    assert bench.epochs == 8, "4 epochs took half of the time of sampling"
    uneven = [options for name, _, options, _ in machine.asked[2:] if name == "uneven"]
    assert {o.get("algo.ppo.epochs", o.get("algo.appo.epochs")) for o in uneven} == {8}


def test_sides_take_turns_and_race_with_another_seed_each():
    machine = Machine()
    bench = bench_of(machine)
    assert all(len(r.rate.values) == PLAN.turns for r in bench.results)
    speeds = [(name, how) for name, how, options, is_endless in machine.asked[2:] if is_endless]
    assert speeds[: len(speeds) // 2] == speeds[len(speeds) // 2 :][::-1], "every second round in reverse"
    races = [options["run.seed"] for _, _, options, is_endless in machine.asked if not is_endless]
    assert sorted(set(races)) == [1, 2]
    assert {r.num_threads for r in bench.racing() if not r.is_rltrain} == {2}, "loops at their best threads"


def test_all_sides_of_a_scenario_learn_the_same_work():
    machine = Machine()
    bench_of(machine)
    for scene, path in (
        ("many", "pipeline.fragment_length"), ("uneven", "pipeline.fragment_length"),
        ("uneven", "algo.ppo.num_minibatches"), ("uneven", "model.hidden_sizes"), ("uneven", "actors.num_actors"),
    ):  # fmt: skip
        work = [o for name, how, o, is_endless in machine.asked[2:] if name == scene and is_endless and how != "async"]
        assert len({str(o[path]) for o in work}) == 1, (scene, path)
    (whole,) = {
        (o["learner.min_batch_fragments"], o["learner.max_batch_fragments"], o["algo.name"])
        for _, how, o, _ in machine.asked if how == "async"
    }  # fmt: skip
    assert whole == (4, 4, "appo"), "async learns from as many fragments at once as the others"


def test_minibatches_of_cheap_envs_have_the_same_rows_whatever_their_number():
    for num_envs in Plan().env_counts:
        options = many_envs(num_envs)
        rows = num_envs * options["pipeline.fragment_length"] / options["algo.ppo.num_minibatches"]
        assert rows == 2048
        total = options["actors.num_actors"] * options["actors.groups_per_actor"] * options["actors.envs_per_group"]
        assert total == num_envs
    assert ARTICLE_ENVS in Plan().env_counts
    assert ARTICLE_ENVS in Plan.quick().env_counts
    assert uneven_envs(16, 8)["actors.envs_per_group"] == 1


def test_report_holds_rltrain_against_the_best_loop_and_the_article():
    bench = bench_of(Machine())
    report = bench.report(RECORD)
    rows = {row[0]: row for row in report.tables[0].rows}
    loop = best_loop([r for r in bench.results if r.scene == MANY])
    assert loop.num_threads == 2
    faster = rows[f"{MANY}: env steps/s"]
    assert faster[3].median == pytest.approx(190 * 2048 / 2000)
    assert faster[4] == "1.3 x"
    busy = rows[f"{UNEVEN}: device busy (CPU learner and server), %"]
    assert busy[1].median == pytest.approx(60)
    assert busy[2].median == pytest.approx(81), "the learner's; the server's 30 % may be at the same time"
    assert rows[f"{UNEVEN}: s to return 100"][3].median == 2.0
    assert rows[f"{UNEVEN}: `overlap` for `sync`, env steps/s"][3].median == pytest.approx(1.9)
    sweep = report.tables[3].rows
    assert [row[0] for row in sweep] == ["512", "2,048", "4,096"]
    assert sweep[1][2].median == pytest.approx(4.0)
    assert sweep[1][3].median == 100, "batches of half of the envs are full"
    headings = [*(c for table in report.tables for c in table.columns), *(chart.title for chart in report.charts)]
    assert not any("GPU" in heading for heading in headings), "without one no column says so"
    assert page_of(report).count("<svg") == 5


def test_return_that_was_not_reached_is_told_as_such():
    bench = bench_of(Machine(misses=("overlap",)))
    own = next(r for r in bench.results if r.label == "rltrain, overlap" and r.scene == UNEVEN)
    assert (own.time.values, own.missed) == ([30.0, 30.0], 2)
    rows = {row[0]: row for row in bench.report(RECORD).tables[0].rows}
    assert rows[f"{UNEVEN}: s to return 100"][3].note == "unknown"


def test_interrupted_bench_reports_what_there_is():
    bench = ArticleBench(PLAN, Machine().trial, Machine().loop)
    assert "what the article promises" in "\n".join(lines_of(bench.report(RECORD)))


def test_uneven_steps_take_their_time_and_are_the_same_for_the_same_seed():
    env = UnevenCartPole(1.0, 20.0)
    env.reset(seed=3)
    first = [env.draw_duration_s() for _ in range(2000)]
    assert 1e-3 <= min(first) < 1.2e-3
    assert 16e-3 < max(first) <= 20e-3
    assert np.exp(np.mean(np.log(first))) == pytest.approx(np.sqrt(20) * 1e-3, rel=0.06), "log-uniform"
    env.reset(seed=3)
    assert env.draw_duration_s() == first[0]
    env.reset()
    assert env.draw_duration_s() != first[0], "an episode without a seed goes on"
    slow = make_env(30.0, 30.0)
    slow.reset(seed=0)
    began = time.perf_counter()
    slow.step(0)
    assert time.perf_counter() - began >= 0.03


@pytest.mark.parametrize(("shortest", "longest"), [(0, 5), (-1, 5), (6, 5)])
def test_uneven_steps_of_impossible_length_are_refused(shortest, longest):
    with pytest.raises(ValueError, match=rf"shortest_ms = {shortest}, longest_ms = {longest}\. Accepted"):
        UnevenCartPole(shortest, longest)


def test_uneven_envs_are_cut_after_500_steps_alone_and_in_parallel():
    assert make_env().spec is None or make_env().spec.max_episode_steps in (None, 500)
    env = make_env(0.001, 0.001)
    env.reset(seed=0)
    env.unwrapped.theta_threshold_radians = env.unwrapped.x_threshold = 1e9
    ends = [env.step(0)[2:4] for _ in range(500)]
    assert ends[-1][1]
    assert not any(truncated for _, truncated in ends[:-1])
    parallel = make_parallel(2, 0.01, 0.02)
    try:
        obs, _ = parallel.reset(seed=1)
        assert obs.shape == (2, 4)
    finally:
        parallel.close()
