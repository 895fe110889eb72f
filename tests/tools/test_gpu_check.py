"""`tools/gpu_check.py` without a GPU: what it runs, what it makes of the answers, and that it says what it left out."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltrain.bench import command
from rltrain.bench.command import OverdueError
from rltrain.bench.figures import Figure
from rltrain.bench.page import page_of
from rltrain.bench.report import Report, Table, as_json, lines_of
from rltrain.bench.trial import Trial, TrialError
from rltrain.config.load import load
from rltrain.telemetry.gpu import GpuSample
from tests.bench.records import RECORD
from tools import gpu_check, gpu_correctness, gpu_trials
from tools.gpu_check import GpuCheck, exit_code, refusal
from tools.gpu_correctness import Check, check_file, files_with_gpu_tests, judged, results
from tools.gpu_trials import SCHEDULES, Trials, article, judged_article, mean_busy, seconds_for, subjects, utilisation

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {"env_steps_per_s": 1000.0, "ledger": {"learner": {"wait_data": 0.25}}, "verdict": "x", "device": "cuda:0"}
FOUND = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two"><failure message="1 != 2&#10;more">trace</failure></testcase>
<testcase name="three"><skipped message="no"/></testcase><testcase name="four"><error message=""/></testcase>
</testsuite></testsuites>"""


# -- checks -------------------------------------------------------------------------------------------------------


def test_files_with_gpu_tests_are_all_that_use_the_marker_and_the_slow_ones_come_last():
    files = files_with_gpu_tests()
    marked = {
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(
            (isinstance(node, ast.Attribute) and node.attr == "gpu")
            or (isinstance(node, ast.ImportFrom) and node.module == "tests.devices")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert set(files) == marked
    assert len(marked) >= 5
    assert [path.name for path in files[-2:]] == ["test_prefetch_device.py", "test_run_device.py"]


def test_results_counts_passed_tests_and_names_the_others_with_their_reason():
    assert results(FOUND) == (1, ["two: 1 != 2", "four: error"])


@pytest.mark.parametrize(
    ("code", "found", "is_good", "text"),
    [
        (1, FOUND, False, "two: 1 != 2"),
        (0, '<testsuite><testcase name="a"/></testsuite>', True, None),
        (0, '<testsuite><testcase name="a"><skipped/></testcase></testsuite>', False, "no test ran"),
        (5, "<testsuite/>", False, "pytest ended with 5: last line"),
        (3, None, False, "pytest ended with 3: last line"),
    ],
)
def test_judged_says_what_did_not_hold(code, found, is_good, text):
    check = judged("file", code, "last line\n", found)
    assert check.is_good == is_good
    assert [text in failure for failure in check.failures[:1]] == ([] if text is None else [True])


@pytest.fixture
def own_tests(monkeypatch, tmp_path):
    """Write a file of tests in a project of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: x\n")
    monkeypatch.setattr(gpu_correctness, "ROOT", tmp_path)

    def write(text: str) -> Path:
        path = tmp_path / "test_own.py"
        path.write_text(f"import time, pytest\n{text}\n")
        return path

    return write


def test_check_file_runs_only_what_is_marked(own_tests):
    path = own_tests("@pytest.mark.gpu\ndef test_a(): pass\ndef test_b(): assert False")
    check = check_file(path, 60)
    assert (check.is_good, check.num_passed, check.failures) == (True, 1, [])
    assert check.name == "test_own.py"
    assert check.seconds > 0


def test_check_file_that_is_not_done_in_time_has_failed_and_is_ended_in_good_order(own_tests, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_correctness, "_LEAST_S", 0)
    path = own_tests(
        "@pytest.fixture\ndef left():\n  yield\n  open('left', 'w').close()\n"
        "@pytest.mark.gpu\ndef test_a(left): time.sleep(60)"
    )
    check = check_file(path, 8)
    assert not check.is_good
    assert check.failures == ["not done within the 8 s that were left"]
    assert (tmp_path / "left").exists()


def test_check_file_without_time_is_not_begun(own_tests):
    assert check_file(own_tests("raise SystemError"), 5) is None


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", subjects(16), ids=lambda s: s.name)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_run_is_a_valid_configuration_on_a_device(subject, schedule):
    from rltrain.bench.trial import as_options

    options = as_options({**subject.overrides, "pipeline.schedule": schedule})
    loaded = load(ROOT / "configs" / subject.config, options[1::2])
    assert loaded.adjustments == []
    assert loaded.config.learner.device == "cuda:0"
    actors = loaded.config.actors
    if "4,096" in subject.name:
        assert actors.num_actors * actors.groups_per_actor * actors.envs_per_group == 4096


def test_seconds_for_shares_the_time_between_its_limits():
    boot = gpu_trials.BOOT_S
    assert seconds_for(10 * (boot + 6), 10) == 6
    assert seconds_for(10_000, 2) == gpu_trials.LONGEST_S
    assert seconds_for(boot + 5, 3) == gpu_trials.SHORTEST_S, "the first ones are made, the last left out"
    assert seconds_for(boot + 3.9, 1) is None


class Clock:
    """Time that passes where runs are made."""

    def __init__(self, left: float):
        self.left, self.made = left, []

    def run(self, config, overrides, seconds):
        """Take the seconds and the boot."""
        self.made.append((config.name, overrides["pipeline.schedule"], seconds))
        self.left -= seconds + gpu_trials.BOOT_S
        if overrides["pipeline.schedule"] == "sync" and overrides.get("model.hidden_sizes"):
            raise TrialError("a run failed")
        return Trial(SUMMARY)


def measured(left: float, monkeypatch, installed: bool = True) -> tuple[Trials, Clock, list[str]]:
    monkeypatch.setattr(gpu_trials, "used_gpu", lambda: None)
    monkeypatch.setattr(gpu_trials.importlib.util, "find_spec", lambda name: "there" if installed else None)
    clock, told = Clock(left), []
    trials = Trials(lambda: clock.left, clock.run)
    trials.run(told.append)
    return trials, clock, told


def test_trials_measure_every_subject_in_every_schedule_and_go_on_after_a_failure(monkeypatch):
    trials, clock, told = measured(1000, monkeypatch)
    assert len(clock.made) == len(told) == 12
    assert trials.left_out == []
    assert trials.failures == ["CartPole, 4,096 envs, MLP 1024 x 1024, sync: a run failed"]
    speeds, _, idle = trials.tables()
    assert [row[0] for row in speeds.rows] == [subject.name for subject in subjects(2)]
    assert [figure.values for figure in speeds.rows[0][1:]] == [[1000.0]] * 3
    assert [figure.values for figure in speeds.rows[1][1:]] == [[], [1000.0], [1000.0]]
    assert [figure.values for figure in idle.rows[0][1:]] == [[25.0]] * 3
    assert [len(chart.series[""]) for chart in trials.charts()] == [3] * 4


def test_trials_without_time_for_all_name_what_is_left_out(monkeypatch):
    trials, clock, _ = measured(30, monkeypatch)
    assert [schedule for _, schedule, _ in clock.made] == ["sync", "overlap"]
    assert clock.left >= 0
    assert len(trials.left_out) == 10
    assert trials.left_out[0] == "CartPole, 4,096 envs, async: no time was left"


def test_trials_of_what_is_not_installed_are_left_out(monkeypatch):
    trials, clock, _ = measured(1000, monkeypatch, installed=False)
    assert {name for name, *_ in clock.made} == {"cartpole.toml"}
    assert len(trials.left_out) == 2
    assert "ale_py is not installed" in trials.left_out[0]


def test_mean_busy_is_that_of_the_window():
    samples = [(0.0, 100.0), (1.0, 50.0), (1.5, None), (2.0, 70.0), (3.0, 0.0)]
    assert mean_busy(samples, 1, 2) == 60
    assert mean_busy(samples, 5, 9) is None
    assert mean_busy([(1.0, None)], 0, 2) is None
    assert mean_busy([], 0, 2) is None


def test_utilisation_is_that_of_the_gpu_that_is_used_not_of_the_busiest(monkeypatch):
    gpus = [GpuSample(i, "x", float(90 - 80 * i), None, None, None, None, f"GPU-{i}") for i in range(2)]
    monkeypatch.setattr(gpu_trials.GpuMonitor, "read", lambda self: tuple(gpus))
    monkeypatch.setattr(gpu_trials, "_SAMPLE_S", 0.01)
    for uuid, wanted in (("GPU-1", {10.0}), ("GPU-0", {90.0}), (None, set()), ("GPU-2", set())):
        with utilisation(uuid) as samples:
            time.sleep(0.1)
        assert {busy for _, busy in samples} == wanted


@pytest.mark.timeout(60)
def test_article_that_is_not_done_leaves_no_process_and_brings_what_it_had(monkeypatch):
    asked = []

    def overdue(command, limit_s, cwd, ask):
        asked.append((limit_s, ask))
        table = Table("t", ("a", "b"), [("x", "y")])
        Path(command[-1]).write_text(json.dumps(as_json(Report("t", "h", RECORD, [table]))))
        raise OverdueError("x")

    monkeypatch.setattr(gpu_trials, "run_to_end", overdue)
    tables, failed, left_out = article(100)
    assert ([table.title for table in tables], failed) == (["t"], None)
    assert left_out == "rltrain bench article: not done within the 100 s that were left"
    assert asked == [(100, signal.SIGINT)]


def test_time_for_the_article_is_kept_from_the_runs():
    check = GpuCheck(400.0, lambda what: None, "A GPU")
    assert check.trials._left_s() == pytest.approx(400 - gpu_trials.ARTICLE_S, abs=1)
    assert gpu_trials.ARTICLE_S > gpu_trials.LEAST_ARTICLE_S
    assert gpu_check.SECONDS + 2 * command.ASK_S + command._KILLED_S < 480


def test_article_of_a_version_without_it_is_left_out_and_one_that_fails_has_failed():
    assert judged_article(2, "Error: No such command 'article'.\n", None)[1:] == (
        None, "rltrain bench article: this version of rltrain has no such command",
    )  # fmt: skip
    tables, failed, left_out = judged_article(2, "Error: no such config.\n", None)
    assert (tables, failed, left_out) == ([], "rltrain bench article ended with 2: Error: no such config.", None)
    assert article(1.0) == ([], None, "rltrain bench article: no time was left")


def test_article_tables_come_back_as_they_were():
    table = Table("t", ("a", "b"), [("x", Figure("env steps/s", [1.0, 2.0], "n")), ("y", "text")])
    found = json.dumps(as_json(Report("t", "h", RECORD, [table])))
    assert judged_article(0, "", found) == ([table], None, None)


# -- the whole ----------------------------------------------------------------------------------------------------


def test_report_shows_failures_and_what_was_left_out(monkeypatch):
    paths = [ROOT / "tests/test_a.py", ROOT / "tests/test_b.py", ROOT / "tests/test_c.py"]
    checks = {
        "test_a.py": Check("tests/test_a.py", True, 3), "test_b.py": Check("tests/test_b.py", False, 1, ["x: 1 != 2"]),
        "test_c.py": None,
    }  # fmt: skip
    monkeypatch.setattr(gpu_check, "files_with_gpu_tests", lambda: paths)
    monkeypatch.setattr(gpu_check, "check_file", lambda path, left_s: checks[path.name])
    monkeypatch.setattr(gpu_check, "article", lambda left_s: ([], "article failed", None))
    monkeypatch.setattr(gpu_trials, "run_trial", None)
    check = GpuCheck(0.0, lambda what: None, "A GPU")
    check.run()
    assert check.failures == ["tests/test_b.py: x: 1 != 2", "article failed"]
    assert check.left_out[0] == "tests/test_c.py: no time was left"
    assert len(check.left_out) >= 1 + 2 * 3, "and every run"
    report = check.report(RECORD)
    text = "\n".join(lines_of(report))
    assert "tests/test_b.py" in text
    assert "FAILED" in text
    assert "left out: tests/test_c.py: no time was left" in text
    assert "A GPU" in page_of(report)
    assert (exit_code(check.failures, True), exit_code([], True), exit_code([], False)) == (1, 0, 130)


def test_refusal_says_in_one_sentence_what_is_missing(monkeypatch):
    assert refusal("A GPU", None, True) is None
    assert refusal(None, None, True).startswith("tools/gpu_check.py needs a CUDA device")
    assert "pip install 'rltrain[test]'" in refusal("A GPU", None, False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "--html needs matplotlib" in refusal("A GPU", Path("x.html"), True)


def test_command_without_a_device_ends_with_2_and_one_line():
    command = [str(ROOT / "tools/gpu_check.py"), "--seconds", "10"]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tools/gpu_check.py needs a CUDA device")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
