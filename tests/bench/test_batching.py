"""`rltrain bench batching` and `weights` in small: loads, what is compared, what a real server answers."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from rltrain.bench import batching, loads
from rltrain.bench.batching import BatchingBench, Plan, ways
from rltrain.bench.batching_scenes import ADAPTIVE, best_static
from rltrain.bench.figures import Figure
from rltrain.bench.loads import Answers, Closed, Open, StallError
from rltrain.bench.page import page_of
from rltrain.bench.report import as_json, lines_of
from rltrain.bench.serving import Policy, Serving, spec
from rltrain.bench.weights import Plan as WeightsPlan
from rltrain.bench.weights import WeightsBench
from rltrain.cli.bench import command
from rltrain.errors import ConfigError
from rltrain.fields import FragmentSchema
from rltrain.inference.batcher import BatcherSettings
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.weights import WeightBoard
from tests.bench.records import RECORD

NUM_LANES = 4


@pytest.fixture
def mailboxes():
    """Mailboxes that a thread answers, one request after the other, each after about 2 ms; and what it answered."""
    layout = ArenaLayout.plan(FragmentSchema.for_env(spec(), 2, 1), NUM_LANES, 1, NUM_LANES, 8, 0, ("inference",))
    arena = Arena.create(layout)
    server, ends, answered = Mailboxes(arena), threading.Event(), []

    def serve():
        while not ends.is_set():
            pending = server.pending()
            if len(pending.lane):
                lane = int(pending.lane[0])
                answered.append((lane, int(pending.slot[0])))
                time.sleep(2e-3)
                server.reply(np.array([lane]), 7)

    thread = threading.Thread(target=serve)
    thread.start()
    yield Mailboxes(arena), answered
    ends.set()
    thread.join(20)
    arena.close()


def test_closed_load_asks_on_every_lane_and_leaves_nothing_open(mailboxes):
    asked, answered = mailboxes
    answers = Closed(1000, 1000).run(asked, 0.3, lambda: None)
    assert {lane for lane, _ in answered} == set(range(NUM_LANES))
    assert all(lane == slot for lane, slot in answered), "slot i is lane i's"
    assert len(answers.latencies_us) + answers.num_late == len(answered)
    assert min(answers.latencies_us) >= 2000
    assert answers.requests_per_s == pytest.approx(len(answers.latencies_us) / answers.seconds)


def test_open_load_counts_latency_from_the_moment_a_request_was_due(mailboxes):
    asked, answered = mailboxes
    answers = Open(2000).run(asked, 0.4, lambda: None)
    # at most 500 a second are answered, 2,000 arrive: those at the end have waited for most of the time
    assert answers.requests_per_s < 600
    assert answers.latency_us(0.99) > 1e5
    assert answers.num_late > 200
    assert len(answered) >= len(answers.latencies_us)


def test_open_load_below_the_servers_speed_is_answered_as_it_comes(mailboxes):
    answers = Open(40).run(mailboxes[0], 0.5, lambda: None)
    assert 5 <= len(answers.latencies_us) <= 60
    assert answers.latency_us(0.5) < 1e5


def test_load_without_answers_gives_up_and_asks_whether_the_server_lives(monkeypatch):
    layout = ArenaLayout.plan(FragmentSchema.for_env(spec(), 2, 1), 1, 1, 1, 8, 0, ("inference",))
    arena = Arena.create(layout)
    monkeypatch.setattr(loads, "STALL_S", 1.1)
    checks = []
    with pytest.raises(StallError, match=r"did not answer for 1\.1 s"):
        Closed(0, 0).run(Mailboxes(arena), 10, lambda: checks.append(1))
    arena.close()
    assert checks


def test_latency_without_answers_is_not_a_number():
    assert np.isnan(Answers().latency_us(0.5))
    assert Answers().requests_per_s == 0


@pytest.mark.parametrize(("groups", "rows"), [(2, 1), (16, 8), (5, 3)])
def test_every_way_to_batch_is_one_that_the_server_takes(groups, rows):
    for batcher in ways(groups, rows).values():
        assert rows <= BatcherSettings(**batcher).max_batch_size <= groups * rows


def test_adaptive_is_held_against_the_best_of_the_others_by_what_counts_under_the_load():
    bench = BatchingBench(Plan())
    heavy, light = bench.scenes[2], bench.scenes[3]
    labels = list(heavy.sides)
    for i, label in enumerate(labels):
        heavy.sides[label].rate.values.append(100.0 + i)
        light.sides[label].rate.values.append(100.0)
        light.sides[label].mean = Figure("us", [50.0 + i])
        light.sides[label].latency[0.99] = Figure("us", [90.0 - i])
    assert [best_static(heavy, score).label for score in heavy.scores()] == [labels[-2]], "the last one is adaptive"
    assert [best_static(light, score).label for score in light.scores()] == [labels[0], labels[-2]]
    heavy.sides[ADAPTIVE].rate.values[:] = [0.94 * (100 + len(labels) - 2)]
    light.sides[ADAPTIVE].latency[0.99].values[:] = [900.0]
    light.sides[ADAPTIVE].mean.values[:] = [50.0]
    rows = {row[0]: row for row in bench.report(RECORD).tables[0].rows}
    assert rows["heavy: requests/s"][-1] == "no"
    assert rows["light: us, mean latency"][4].median == pytest.approx(1)
    assert rows["light: us, mean latency"][-1] == "yes"
    p99 = rows["light: us, p99 latency"]
    assert p99[4].median == pytest.approx((90 - len(labels) + 2) / 900)
    assert p99[-1] == "no", "a good mean does not hide a long tail"


def test_heavy_load_is_more_than_the_largest_batches_answer_and_light_less_than_one_at_a_time(monkeypatch):
    class Alone:
        """A server that answers 100 requests a second, or, in batches of all, 400."""

        def __init__(self, *_):
            pass

        __enter__ = __init__

        def __exit__(self, *_):
            pass

    def ask(_, batcher, load, seconds):
        asked.append(batcher["max_batch_size"])
        answered = 400 if batcher["max_batch_size"] == 16 * 8 else 100
        return Answers(1.0, [1.0] * answered), None

    asked: list[int] = []
    monkeypatch.setattr(batching, "Serving", Alone)
    monkeypatch.setattr(batching, "_ask", ask)
    bench = BatchingBench(Plan(turns=0))
    bench.run(lambda *_: None)
    assert bench.scenes[2].load == Open(batching.HEAVY * 400)
    assert bench.scenes[3].load == Open(batching.LIGHT * 100)
    assert batching.HEAVY > 1 > batching.LIGHT
    assert asked == [8, 8, 128]


@pytest.mark.parametrize(("late", "is_told"), [(40.0, False), (1.0, True), (0.0, True)])
def test_heavy_load_that_did_not_bind_is_told_of(late, is_told):
    bench = BatchingBench(Plan())
    for side in bench.scenes[2].sides.values():
        side.late.values.append(late)
    assert any("answered nearly all that was offered" in note for note in bench.report(RECORD).notes) == is_told


def test_batching_bench_measures_a_real_server_and_reports_it():
    bench = BatchingBench(Plan(turns=1, turn_s=0.05, num_groups=3, rows=2), Policy((8, 8)))
    told = []
    bench.run(lambda *said: told.append(said))
    assert told[-1][0] == pytest.approx(told[-1][1])
    for scene in bench.scenes:
        for side in scene.sides.values():
            assert side.rate.values[0] > 0, (scene.name, side.label)
            assert sum(figure.values[0] for figure in side.reasons.values()) == pytest.approx(100)
            assert side.latency[0.5].values[0] <= side.latency[0.99].values[0]
            assert len(side.mean.values) == 1
            assert side.batch_rows.values[0] <= side.batcher["max_batch_size"]
        assert scene.sides["none: one request at a time"].batch_rows.values == [2.0]
    report = bench.report(RECORD)
    text = "\n".join(lines_of(report))
    for wanted in ("load even", "load uneven", "load heavy", "load light", "padding %", "all_waiting %"):
        assert wanted in text
    assert len(as_json(report)["tables"]) == 9
    assert page_of(report).count("<svg") >= 1


@pytest.mark.parametrize("make", [
    lambda: BatchingBench(Plan(), Policy(device="cuda:99")), lambda: WeightsBench(WeightsPlan(), "cuda:99"),
])  # fmt: skip
def test_device_that_is_not_there_is_refused_by_its_option(make):
    with pytest.raises(ConfigError, match="--device = 'cuda:99' is not on this machine"):
        make().run(lambda *_: None)


@pytest.mark.parametrize("name", ["batching", "weights"])
def test_device_option_reaches_the_server(name):
    with pytest.raises(ConfigError, match="--device = 'cuda:98'"):
        command.main([name, "--quick", "--device", "cuda:98"], standalone_mode=False)


def test_server_that_has_died_is_found_out():
    from rltrain.bench.partner import PartnerError

    with Serving(2, 1, Policy((8, 8))) as serving:
        serving._partner._process.kill()
        with pytest.raises(PartnerError, match="ended with exit code -9"):
            serving.serve(next(iter(ways(2, 1).values())), lambda: None)


def test_weights_bench_finds_the_new_version_used_after_it_was_published(monkeypatch):
    publish = WeightBoard.publish
    monkeypatch.setattr(WeightBoard, "publish", lambda *arguments: (time.sleep(0.01), publish(*arguments)))
    bench = WeightsBench(WeightsPlan(widths=(8,), turns=2, versions=3))
    bench.run(lambda *_: None)
    (size,) = bench.sizes
    assert size.num_parameters > 100
    for figure in (size.publish, size.idle, size.idle_most, size.busy, size.busy_most, size.forward):
        assert len(figure.values) == 2
        assert min(figure.values) > 0
    assert min(size.publish.median, size.idle.median, size.busy.median) >= 10, "publishing is a part of it"
    assert size.forward.median < 10
    assert size.idle.median <= size.idle_most.median
    assert f"{size.num_parameters:,}" in "\n".join(lines_of(bench.report(RECORD)))


def test_weights_bar_is_that_of_the_policy_with_about_a_million_parameters():
    bench = WeightsBench(WeightsPlan())
    assert bench.report(RECORD).tables[1].rows == []
    for size, parameters, ms in zip(bench.sizes, (9_824, 102_352, 1_008_864, 10_019_520), (1, 2, 5.1, 9), strict=True):
        size.num_parameters = parameters
        size.idle.values.append(ms)
        size.busy.values.append(ms - 0.2)
    assert [row[3] for row in bench.report(RECORD).tables[1].rows] == ["no", "yes"]
