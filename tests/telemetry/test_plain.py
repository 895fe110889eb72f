from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest

from rltrain.telemetry import plain
from rltrain.telemetry.plain import PlainLines, choose_display
from rltrain.telemetry.verdict import judge
from tests.telemetry.samples import HEADER, Clock, sample

pytestmark = pytest.mark.timeout(60)

SHARES = {"learner": {"update": 0.93, "wait_data": 0.05, "publish": 0.02}, "actor": {"env_step": 1.0}}


@pytest.fixture
def clock(monkeypatch):
    """A clock of the plain lines that the test moves."""
    moved = Clock()
    monkeypatch.setattr(plain, "time", moved)
    return moved


def test_plain_lines_one_line_each_interval_with_the_main_figures(clock):
    out = StringIO()
    display = PlainLines(out, HEADER)
    display.start()
    now = sample(SHARES)
    for _ in range(21):
        display.update(now, judge(now, "overlap"), [], "training")
        clock.now += 1
    header, *lines = out.getvalue().splitlines()
    assert "CartPole-v1" in header
    assert len(lines) == 3
    assert lines[0] == (
        "60.0 s  steps 500,000 (50 %)  201,234 steps/s  45.5 updates/s  return 123.4  "
        "learner-bound: the learner computes 93 % and waits for data 5 % of the time"
    )


def test_plain_lines_new_phase_prints_at_once(clock):
    out = StringIO()
    display = PlainLines(out, HEADER)
    display.update(None, None, [], "starting")
    display.update(sample(SHARES), None, [], "training")
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["starting", "60.0"]


def test_plain_lines_each_warning_is_printed_once_and_a_flood_is_counted(clock):
    out = StringIO()
    display = PlainLines(out, HEADER)
    warnings = ["first \x1b[31mred\nline"]
    for _ in range(3):
        display.update(sample(SHARES), None, warnings, "training")
        clock.now += 11
    assert out.getvalue().count("warning: first ?[31mred line") == 1
    display.update(sample(SHARES), None, warnings + [f"w{i}" for i in range(10)], "training")
    display.stop()
    assert [line for line in out.getvalue().splitlines() if line.startswith("warning: w")] == [
        "warning: w0", "warning: w1", "warning: w2"
    ]
    assert "and 7 more warnings" in out.getvalue()


def test_plain_lines_last_line_comes_at_once_and_after_the_warnings(clock):
    out = StringIO()
    display = PlainLines(out, HEADER)
    display.update(sample(SHARES), None, [], "stopped")
    display.update(sample(SHARES, env_steps=600_000), None, ["late"], "stopped", is_last=True)
    display.stop()
    _, warning, last = out.getvalue().splitlines()
    assert warning == "warning: late"
    assert "steps 600,000" in last


def test_plain_lines_late_warning_is_printed_at_the_end(clock):
    out = StringIO()
    display = PlainLines(out, HEADER)
    display.update(None, None, [], "training")
    display.update(None, None, ["late"], "training")
    display.stop()
    display.stop()
    assert out.getvalue().count("warning: late") == 1


def test_plain_lines_reader_that_goes_away_ends_output_and_not_the_process():
    program = (
        "import sys\n"
        "from rltrain.telemetry.plain import PlainLines\n"
        "from tests.telemetry.samples import Clock, HEADER, sample\n"
        "display = PlainLines(sys.stdout, HEADER, interval_s=0)\n"
        "display.start()\n"
        "sys.stdin.read()\n"
        "for _ in range(100): display.update(sample({}), None, [], 'training')\n"
        "display.stop()\n"
        "print('the closing summary', flush=True)\n"
        "print('went on', file=sys.stderr)\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout.readline().startswith("run cartpole")
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == "went on\n"
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_plain_lines_stream_of_another_encoding_gets_escapes():
    with open(os.devnull, "w", encoding="ascii") as stream:
        display = PlainLines(stream, HEADER)
        display.update(None, None, ["naïve"], "phase é")
        stream.flush()
        assert display._is_open


@pytest.mark.parametrize(
    ("is_terminal", "wanted", "term", "expected"),
    [
        (True, True, "xterm", "Dashboard"), (True, False, "xterm", "PlainLines"),
        (True, True, "dumb", "PlainLines"), (False, True, "xterm", "PlainLines"), (True, True, None, "PlainLines"),
    ],
)
def test_choose_display_dashboard_only_on_a_capable_terminal(is_terminal, wanted, term, expected):
    stream = StringIO()
    stream.isatty = lambda: is_terminal
    environ = {} if term is None else {"TERM": term}
    assert type(choose_display(stream, HEADER, wanted, environ)).__name__ == expected
    stream.close()


def test_choose_display_closed_stream_is_plain_lines_that_print_nothing():
    stream = StringIO()
    stream.close()
    display = choose_display(stream, HEADER, True, {"TERM": "xterm"})
    display.start()
    display.update(sample(SHARES), None, ["warning"], "training")
    display.stop()
    assert isinstance(display, PlainLines)


def test_plain_lines_tell_how_full_the_replay_is(clock):
    out = StringIO()
    display = PlainLines(out, replace(HEADER, replay_capacity=10_000))
    display.update(sample(SHARES, replay_transitions=1_494), None, [], "training")
    assert "45.5 updates/s  return 123.4  replay 1,494 (15 %)" in out.getvalue()
