"""What benches say: figures, turns, tables as text and JSON, the page, trials."""

from __future__ import annotations

import html.parser
import json
import re

import psutil
import pytest

from rltrain.bench import trial as trial_module
from rltrain.bench.figures import Figure, alternate, ratio
from rltrain.bench.page import check_available, page_of
from rltrain.bench.report import Chart, Report, Table, as_json, lines_of
from rltrain.bench.stages import Stages
from rltrain.bench.suite import Progress
from rltrain.bench.trial import Trial, TrialError, parse_overrides, run_trial
from rltrain.config.load import load
from rltrain.errors import ConfigError
from tests.bench.test_conventional import CARTPOLE

RECORD = {
    "command": "rltrain bench it --quick", "time": "2026-01-01 00:00:00 +0000", "commit": None, "cpu": "<Chip> & Co",
    "usable_cores": 2, "memory_bytes": 8 * 2**30, "load_average": 0.25, "system": "Linux 6 x86_64",
    "versions": {"python": "3.11", "torch": "2.13"},
}  # fmt: skip


def a_report() -> Report:
    fast, slow = Figure("env steps/s", [3000.0, 1000.0, 2000.0]), Figure("env steps/s", [12.5])
    none = Figure("env steps/s", note="not installed")
    table = Table("speed", ("", "env steps/s", "of it"), [
        ("fast <one>", fast, "x"), ("slow", slow, Figure("x", [0.125])), ("none", none, "")
    ])  # fmt: skip
    charts = [
        Chart("bars", "", "env steps/s", {"": [("fast", fast), ("slow", slow)]}, {"limit": 4000.0}),
        Chart("lines", "rows", "us", {"a": [(1, slow), (64, fast)], "b": [(1, fast), (64, none)]}),
        Chart("nothing", "rows", "us", {"a": [(1, none)]}),
    ]
    return Report("bench it", "medians", RECORD, [table], charts, ["mind & this", "mind & this"])


def test_sides_take_turns_and_every_second_round_goes_backwards():
    order: list[str] = []
    told: list[None] = []

    def measured(name: str) -> float:
        order.append(name)
        return float(len(order))

    first, second = Figure("x"), Figure("x")
    alternate(3, [(first, lambda: measured("a")), (second, lambda: measured("b"))], lambda: told.append(None))
    assert "".join(order) == "abbaab"
    assert (first.values, second.values) == ([1, 4, 5], [2, 3, 6])
    assert len(told) == 6


def test_ratio_is_taken_turn_by_turn():
    """A turn in which the machine was half as fast must not count."""
    assert ratio(Figure("x", [30.0, 15.0, 30.0]), Figure("x", [10.0, 5.0, 10.0])).values == [3, 3, 3]
    assert ratio(Figure("x", [1.0, 2.0]), Figure("x", [0.0, 1.0])).values == [2]
    assert Figure("x").median is None


def test_lines_align_figures_with_their_spread_and_say_a_note_once():
    lines = list(lines_of(a_report()))
    assert lines[1] == "<Chip> & Co, 2 cores, 8.0 GiB, load 0.2 at the start"
    table = lines[lines.index("speed") + 1 :][:4]
    assert table[1].split("  ")[-1] == "x"
    assert "2,000 (1,000 to 3,000)" in table[1]
    assert "12.5" in table[2] and "0.125" in table[2] and "to" not in table[2]  # noqa: PT018
    assert "not installed" in table[3]
    assert len({line.index("env steps/s") + len("env steps/s") for line in table[:1]}) == 1
    assert [line for line in lines if line.startswith("note")] == ["note: mind & this"]


def test_json_holds_every_value():
    whole = json.loads(json.dumps(as_json(a_report())))
    label, fast, text = whole["tables"][0]["rows"][0]
    assert (label, text) == ("fast <one>", "x")
    assert fast == {
        "unit": "env steps/s", "median": 2000, "lowest": 1000, "highest": 3000, "values": [3000, 1000, 2000], "note": ""
    }
    assert whole["tables"][0]["rows"][2][1]["median"] is None
    assert whole["is_complete"] is True


class Reader(html.parser.HTMLParser):
    """Notes what a page loads, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [f"{tag} {v}" for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith("#")]

    def handle_data(self, data):
        self.text += data


def test_page_is_one_file_with_a_picture_of_each_chart_that_has_figures():
    report = a_report()
    report.is_complete = False
    page = page_of(report)
    reader = Reader()
    reader.feed(page)
    assert reader.tags.count("svg") == 2
    assert reader.loads == []
    assert not re.search(r"@import|url\(http", page)
    assert "<Chip> & Co" in reader.text
    assert "fast <one>" in reader.text
    assert "limit" in reader.text
    assert "Interrupted" in reader.text
    assert "nothing" not in reader.text


def test_page_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"--html needs matplotlib: pip install 'rltrain\[report\]'"):
        check_available()


def test_progress_adds_up_what_is_done():
    told: list[tuple[float, float, str]] = []
    progress = Progress(lambda *said: told.append(said), 10.0)
    progress.say("begin")
    progress.advance(4.0, "half")
    progress.advance(6.0, "end")
    assert told == [(0, 10, "begin"), (4, 10, "half"), (10, 10, "end")]


def test_trial_is_a_run_that_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    trial = run_trial(CARTPOLE, {"run.total_env_steps": 2000, "learner.device": "cpu"}, None)
    assert trial.summary["env_steps"] >= 2000
    assert trial.env_steps_per_s > 0
    assert 0 <= trial.learner_idle_share < 1
    assert trial.share("actor", "env_step") > 0
    assert trial.share("nobody", "env_step") == 0
    assert (trial.summary["device"], trial.summary["inference_device"]) == ("cpu", "cpu")
    assert (trial.has_role("inference"), trial.has_role("evaluator"), trial.has_gpu) == (True, False, False)
    assert list(tmp_path.iterdir()) == []


def test_trial_that_fails_says_what_the_run_said():
    with pytest.raises(TrialError, match=r"exit code 2:\n(?s:.*)no_such_option"):
        run_trial(CARTPOLE, {"run.no_such_option": 1}, 1)


@pytest.mark.timeout(120)
def test_trial_that_is_not_over_is_ended_with_all_its_processes(monkeypatch):
    monkeypatch.setattr(trial_module, "ALLOWANCE_S", -592.0)
    children = set(psutil.Process().children(recursive=True))
    with pytest.raises(TrialError, match=r"not over -592 s after the 600 s that were asked for; it has been ended:"):
        run_trial(CARTPOLE, {"learner.device": "cpu"}, 600)
    assert set(psutil.Process().children(recursive=True)) == children


@pytest.mark.parametrize(
    ("learner", "server", "has_gpu", "on_cpu"),
    [("cpu", "cpu", False, (True, True)), ("cuda:0", "cuda:0", True, (False, False)),
     ("cpu", "cuda:1", True, (True, False)), ("cuda:0", "cpu", True, (False, True))],
)  # fmt: skip
def test_trial_has_a_gpu_where_the_learner_or_the_server_has_one(learner, server, has_gpu, on_cpu):
    trial = Trial({"device": learner, "inference_device": server})
    assert trial.has_gpu is has_gpu
    assert (trial.is_learner_on_cpu, trial.is_policy_on_cpu) == on_cpu


def test_idle_share_of_a_learner_counts_the_replay_too():
    assert Trial({"ledger": {"learner": {"wait_data": 0.25, "sample": 0.5, "update": 0.25}}}).learner_idle_share == 0.75


def test_overrides_of_a_command_line_have_the_values_of_the_configuration():
    texts = ["run.seed=3", "env.kwargs={size = 2}", "run.target_return=none", "run.name=x", "model.hidden_sizes=[8]"]
    overrides = parse_overrides(texts)
    assert overrides["run.seed"] == 3
    from rltrain.bench.trial import as_options

    config = load(CARTPOLE, as_options(overrides)[1::2]).config
    assert config.env.kwargs == {"size": 2}
    assert (config.run.name, config.run.target_return, config.model.hidden_sizes) == ("x", None, (8,))
    with pytest.raises(ConfigError, match=r"--set run.seed: accepted is section.key=value"):
        parse_overrides(["run.seed"])


@pytest.mark.parametrize(
    ("changes", "actors", "cores", "limit", "bound"),
    [
        ({}, 1, 64, 250_000.0, "envs"),
        ({}, 8, 64, 500_000.0, "update"),
        ({"inference": {8: 9e-6, 64: 3e-6}}, 8, 64, 1 / 3e-6, "inference"),
        ({"update": 1e-6}, 8, 2, 2 / 7e-6, "cores"),
    ],
)
def test_limit_is_that_of_the_slowest_stage_or_of_the_cores(changes, actors, cores, limit, bound):
    stages = Stages(**{
        "env": 4e-6, "env_cpu": 4e-6, "inference": {8: 2e-6, 64: 1e-6}, "update": 2e-6, "update_cpu": 2e-6,
        "transfer": 1e-9, "publish": 1e-9, **changes,
    })  # fmt: skip
    found, name = stages.limit(actors, cores)
    assert (found, name) == (pytest.approx(limit), bound)
    on_gpu = stages.limit(actors, cores, is_policy_on_cpu=False, is_learner_on_cpu=False)[0]
    assert limit <= stages.limit(actors, cores, is_policy_on_cpu=False)[0] <= on_gpu, "a GPU takes no core"


