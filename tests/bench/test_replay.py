"""`rltrain bench replay`: what is measured of whom, in small; failures of others, memory, Ctrl-C, the text."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from rltrain.bench import replay, replay_table
from rltrain.bench.record import record
from rltrain.bench.replay import BYTES, GATHER, INSERT, PAIR, Figure, Plan, ReplayBench
from rltrain.bench.replay_peers import PEERS, Peer
from rltrain.bench.replay_sides import Case, NumpyLimit, Rltrain, T, Transitions
from rltrain.cli.app import run_app

ROOT = Path(__file__).parents[2]
VECTOR = Case((3,), "float32", 1, 2048)
FRAMES = Case((4, 6, 6), "uint8", 4, 2048)
SMALL = Plan((VECTOR, FRAMES), batch_sizes=(4, 16), repeats=2, turn_s=0.001, peers=())


class Other:
    """A replay that does nothing, the first `num_good` draws of it."""

    label = "other 1.0"
    num_good = 10**9
    error: BaseException = ValueError("it broke\nat length")

    def __init__(self, transitions):
        self.num_pairs = 0

    def insert(self):
        return 512

    def pair(self, batch_size):
        self.num_pairs += 1
        if self.num_pairs > self.num_good:
            raise self.error


@pytest.fixture
def other(monkeypatch):
    """A library that is always installed; returns how it behaves."""
    behaviour = type("Behaving", (Other,), {})
    peers = {"json": Peer("json", "json", behaviour, 1, lambda obs_bytes: 1e6)}
    monkeypatch.setattr(replay, "PEERS", peers)
    return behaviour


def measured(plan, told=None):
    bench = ReplayBench(plan, lambda done_s, what: told is None or told.append((done_s, what)))
    bench.run()
    return bench


def text_of(bench):
    lines = replay_table.lines_of(bench.figures, bench.notes, bench.plan, record(("cpprb",)))
    return "\n".join(lines)


@pytest.mark.parametrize("case", [VECTOR, FRAMES], ids=["vector", "frames"])
def test_transitions_follow_each_other_without_end(case):
    fragments = Transitions(case).fragments
    for first, second in pairwise([*fragments, fragments[0]]):
        np.testing.assert_array_equal(first["obs"][T], second["obs"][0])
        assert first["obs"].shape == (T + 1, 16, *case.shape)
        if case.frame_stack > 1:
            np.testing.assert_array_equal(first["obs"][1:, :, :-1], first["obs"][:-1, :, 1:])
    assert not np.array_equal(fragments[0]["obs"], fragments[1]["obs"])


@pytest.mark.parametrize("case", [VECTOR, FRAMES], ids=["vector", "frames"])
def test_own_side_draws_what_was_put_in_and_updates_it(case):
    own = Rltrain(Transitions(case))
    for _ in range(12):
        assert own.insert() == 512
    assert own.store.size == own.layout.num_items - 32, "the newest row of each env cannot be drawn yet"
    before = own.priorities.tree.masses.copy()
    own.pair(16)
    assert 1 <= (own.priorities.tree.masses != before).sum() <= 16
    drawn = own._out[16]
    rows = np.concatenate([x["obs"][:T].reshape(-1, *case.shape) for x in own.transitions.fragments])
    assert (drawn["is_weight"] > 0).all()
    for obs, after in zip(drawn["obs"], drawn["next_obs"], strict=True):
        (place,) = (rows == obs).reshape(len(rows), -1).all(1).nonzero()[0][:1]
        np.testing.assert_array_equal(after, rows[(place + 16) % len(rows)])


def test_limit_moves_the_bytes_of_a_batch():
    limit = NumpyLimit(Transitions(FRAMES))
    limit.gather(16)
    assert sum(x.nbytes for x in limit._targets[16]) == 16 * FRAMES.drawn_bytes
    assert limit._targets[16][0].any()
    assert not np.array_equal(limit._targets[16][0], limit._targets[16][1])


def test_bench_without_others_measures_everything_of_each_case():
    told = []
    bench = measured(SMALL, told)
    own, limit = "rltrain", "numpy's gather alone"
    expected = {(INSERT, None, own), (BYTES, None, own), (BYTES, None, "rltrain, computed")}
    expected |= {(what, size, own) for what in (PAIR, GATHER) for size in (4, 16)}
    expected |= {(GATHER, size, limit) for size in (4, 16)}
    for case in SMALL.cases:
        assert {(f.what, f.batch_size, f.side) for f in bench.figures if f.case == case} == expected
    assert all(len(f.values) == (1 if f.what == BYTES else 2) for f in bench.figures)
    assert all(len(f.cpu_values) == (0 if f.what == BYTES else 2) for f in bench.figures)
    assert all(value > 0 for f in bench.figures if f.what != BYTES for value in (*f.values, *f.cpu_values))
    assert bench.notes == [] or "busy" in bench.notes[0]
    assert told[-1][0] == pytest.approx(bench.expected_s)


def test_other_library_is_measured_in_turn_and_compared_with_its_own_round(other):
    bench = measured(dataclasses.replace(SMALL, cases=(VECTOR,), peers=("json",)))
    assert {f.beside for f in bench.figures if f.what in (INSERT, PAIR)} == {"other 1.0"}
    assert [f.what for f in bench.figures if f.side == "other 1.0"] == [BYTES, INSERT, PAIR, PAIR]
    text = text_of(bench)
    assert re.search(r"^    other 1\.0 +[\d,]+  \([\d,]+ to [\d,]+\) +rltrain [\d.]+ x \([\d.]+ x\)$", text, re.M), text
    assert re.search(r"^    rltrain +[\d,]+  \([\d,]+ to [\d,]+\) +\d+% \(\d+%\) of numpy's gather$", text, re.M), text


def test_other_library_that_fails_is_named_and_leaves_no_figure(other):
    other.num_good = 3
    bench = measured(dataclasses.replace(SMALL, peers=("json",)))
    assert "json cannot be measured: ValueError: it broke" in bench.notes
    assert {f.side for f in bench.figures} == {"rltrain", "rltrain, computed", "numpy's gather alone"}
    assert {f.case for f in bench.figures if f.what == PAIR} == set(SMALL.cases)


def test_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(replay, "PEERS", {"not-there": Peer("not-there", "not_there_at_all", Other, 1, lambda _: 1.0)})
    bench = measured(dataclasses.replace(SMALL, cases=(VECTOR,), peers=("not-there",)))
    assert "not installed: not-there (pip install -c tools/constraints.txt not-there)" in bench.notes
    assert "other 1.0" not in {f.side for f in bench.figures}


def test_what_does_not_fit_is_left_out_and_named(monkeypatch, other):
    needed = replay.layout_of(VECTOR).num_bytes
    available = psutil.virtual_memory()._replace(available=needed)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    bench = measured(dataclasses.replace(SMALL, cases=(VECTOR,), peers=("json",)))
    assert bench.figures == []
    assert any("no rltrain, which needs 0.0 GiB; 0.0 GiB are available" in note for note in bench.notes)


def test_ratio_is_of_medians_of_the_same_round():
    block = [
        Figure(VECTOR, PAIR, 4, "rltrain", "a", [10, 30, 20], [60]), Figure(VECTOR, PAIR, 4, "a", "a", [5, 1, 9], [20]),
        Figure(VECTOR, PAIR, 4, "rltrain", "b", [300, 100, 200], [90]), Figure(VECTOR, PAIR, 4, "b", "b", [20], [10]),
    ]
    assert replay_table.ratio_to_own("a", block) == 4
    assert replay_table.ratio_to_own("b", block) == 10
    assert [replay_table.ratio_to_own(label, block, by_cpu=True) for label in "ab"] == [3, 9]
    limit = Figure(VECTOR, GATHER, 4, "numpy's gather alone", "a", [130], [25])
    assert replay_table.share_of_limit([*block, limit], 4) == 0.5
    assert replay_table.share_of_limit([*block, limit], 4, by_cpu=True) == 3


def test_interrupted_bench_prints_and_writes_what_there_is(other, monkeypatch, capsys, tmp_path):
    other.num_good, other.error = 12, KeyboardInterrupt()
    plan = dataclasses.replace(SMALL, peers=("json",))
    monkeypatch.setattr(Plan, "quick", classmethod(lambda cls: plan))
    with pytest.raises(KeyboardInterrupt):
        run_app(["bench", "replay", "--quick", "--json", str(tmp_path / "out.json")])
    said = capsys.readouterr().out
    assert "interrupted: this is what was measured until then" in said
    assert f"  {INSERT}" in said
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["is_complete"] is False
    assert {figure["what"] for figure in written["figures"]} >= {INSERT, BYTES}


def test_complete_bench_writes_every_value_and_what_it_was_measured_on(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Plan, "quick", classmethod(lambda cls: SMALL))
    assert run_app(["bench", "replay", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    assert str(VECTOR) in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["is_complete"] is True
    assert {"time", "command", "commit", "cpu", "usable_cores", "memory_bytes", "versions"} <= set(written["record"])
    for figure in written["figures"]:
        assert figure["lowest"] <= figure["median"] <= figure["highest"]
        assert min(figure["values"]) == figure["lowest"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["--quick", "--capacity", "10000"], "Use either --quick or --capacity"),
    (["--json", "nowhere/out.json"], "there is no folder 'nowhere'"),
    (["--capacity", "5"], "10000"),
])
def test_options_that_do_not_go_together_are_refused(arguments, message, capsys):
    assert run_app(["bench", "replay", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_ctrl_c_in_the_middle_ends_with_the_table_and_its_exit_code():
    process = subprocess.Popen(
        [sys.executable, "-m", "rltrain", "bench", "replay", "--quick"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        line = process.stderr.readline()
        assert "filling" in line
        assert re.search(r"\(.* left\)", line)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, errors
    assert "rltrain bench replay --quick" in said
    assert "interrupted" in said
    assert "Traceback" not in errors


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("case", [VECTOR, FRAMES], ids=["vector", "frames"])
@pytest.mark.filterwarnings("ignore")
def test_other_library_fills_and_draws(name, case):
    pytest.importorskip(PEERS[name].module, exc_type=ImportError)
    try:
        side = PEERS[name].make(Transitions(case))
    except RuntimeError as error:
        pytest.skip(f"its compiled part does not fit: {error}")
    assert sum(side.insert() for _ in range(200)) >= case.capacity
    side.pair(16)
    side.pair(4)
