from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from fcntl import ioctl
from io import StringIO

import pytest
from rich.console import Console

from rltrain.telemetry.dashboard import Dashboard
from rltrain.telemetry.glyphs import ASCII, UNICODE
from rltrain.telemetry.gpu import GpuSample
from rltrain.telemetry.verdict import judge
from tests.telemetry.samples import HEADER, sample

pytestmark = pytest.mark.timeout(60)

SHARES = {
    "actor": {"env_step": 0.6, "wait_action": 0.27, "write": 0.1, "load_weights": 0.03},
    "inference": {"wait_request": 0.5, "batch_delay": 0.1, "gather": 0.1, "forward": 0.2, "d2h": 0.1},
    "learner": {"wait_data": 0.3, "update": 0.65, "publish": 0.05},
    "evaluator": {"wait_work": 0.9, "env_step": 0.1},
}
FIGURES = {
    "batch_size_mean_rows": 61.5, "queue_delay_us_p50": 38.0, "queue_delay_us_p95": 152.0, "queue_delay_us_p99": 215.0,
    "service_us_p50": 54.0, "service_us_p95": 256.0, "policy_lag_p50": 1.0, "policy_lag_p99": 2.0,
}
GPU = GpuSample(0, "NVIDIA H200", 91.0, 12 * 2**30, 139 * 2**30, 412.0, 700.0)


def frame(width=80, height=24, num_actors=2, glyphs=UNICODE, warnings=(), num_updates=5, **figures) -> list[str]:
    """Return the lines that a terminal of this size would show."""
    dashboard = Dashboard(Console(file=StringIO(), width=width, height=height, force_terminal=True), HEADER, glyphs)
    now = sample(SHARES, num_actors, **{**FIGURES, **figures})
    for _ in range(num_updates):
        dashboard._history.add(now)
    lines = dashboard.lines(now, judge(now, "async"), list(warnings), "training", width - 1, height - 1)
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize(("num_actors", "gpus"), [(1, ()), (32, ()), (32, (GPU, GPU, GPU))])
def test_dashboard_at_80x24_shows_everything_within_the_screen(glyphs, num_actors, gpus):
    lines = frame(num_actors=num_actors, glyphs=glyphs, gpus=gpus, warnings=["actor-1 died"])
    text = "\n".join(lines)
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 79
    wanted = ["201,234", "45.5 updates/s", "return 123.4 (target 475)", "length 123", "50 %", "left", "61.5 rows",
              "38/152/215 us", "p50 1  p99 2", "env-bound", "learner starved 30 %", "try: ", "free 10", "actor-1 died"]
    wanted += ["91 % in use", "412 of 700 W", "12.0 GiB of 139.0 GiB"] if gpus else ["no GPU", "inference 50 %"]
    assert [word for word in wanted if word not in text] == []


def test_dashboard_wraps_warnings_and_keeps_the_newest_whole():
    long = f"actor-0 was killed by SIGKILL while stepping env 0 (seed 1), {'word ' * 30}see runs/a/logs/actor-0.log"
    text = " ".join(line.strip() for line in frame(height=40, warnings=["first", long]))
    assert "! first" in text
    assert "see runs/a/logs/actor-0.log" in text
    short = frame(warnings=["first", long, "last"])
    assert len(short) <= 23
    assert short[-1] == "! last"
    assert not any("first" in line for line in short)


def test_dashboard_at_80x24_puts_many_actors_in_one_row_of_mean_shares():
    rows = [line for line in frame(num_actors=32) if "env_step 60 %" in line]
    assert [row.split()[:2] for row in rows] == [["32", "actors"]]
    assert "1600 %" in rows[0]


def test_dashboard_at_200x50_has_a_row_for_each_process():
    lines = frame(200, 50, num_actors=12)
    assert sum(line.startswith("actor-") for line in lines) == 12
    assert len(lines) <= 49
    assert max(map(len, lines)) <= 199


def test_dashboard_bar_has_a_cell_for_each_share():
    row = next(line for line in frame() if line.startswith("learner"))
    assert row.split()[1] == "█" * 10 + "▒" + "░" * 4
    row = next(line for line in frame(glyphs=ASCII) if line.startswith("learner"))
    assert row.split()[1] == "#" * 10 + "+" + "-" * 4


def test_dashboard_long_delays_fit_into_80_columns():
    slow = {"queue_delay_us_p50": 362.0, "queue_delay_us_p95": 4_096.0, "queue_delay_us_p99": 925_000.0,
            "service_us_p50": 362.0, "service_us_p95": 4_096.0, "batch_size_mean_rows": 12_345.0}
    (line,) = [line for line in frame(**slow) if line.startswith("batches")]
    assert "queue p50/95/99 0.36/4.1/925 ms" in line
    assert line.endswith("service 0.36/4.1 ms")
    assert len(line) <= 79


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_dashboard_columns_have_a_heading_and_each_row_its_own_name(width, height):
    lines = frame(width, height)
    (heading,) = [line for line in lines if line.startswith("time by state")]
    row = next(line for line in lines if line.startswith("learner"))
    assert heading.endswith("memory")
    assert len(heading) == len(row) == width - 1
    assert row.index("50 %  ") + 4 == heading.index("CPU") + 3
    assert sum(line.startswith("inference") for line in lines) == 1


def test_dashboard_bars_use_a_wide_terminal():
    row = next(line for line in frame(200, 50) if line.startswith("inference"))
    assert len(row.split()[1]) > 90
    assert "wait_request 50 % forward 20 % batch_delay 10 % gather 10 % d2h 10 %" in row


def test_dashboard_last_frame_has_no_time_left():
    dashboard = Dashboard(Console(file=StringIO(), width=80, height=24), HEADER, UNICODE)
    now = sample(SHARES)
    dashboard._history.add(now)
    lines = dashboard.lines(now, None, [], "stopped", 79, 23, is_last=True)
    assert "left" not in "".join(text for text, _ in lines[1])
    assert "1:00 min" in lines[1][-1][0]


def test_dashboard_time_left_is_at_the_present_speed():
    assert "4:09 min left" in frame(env_steps=500_000, env_steps_per_s=2_010.0)[1]
    assert "1:00 min, - left" in frame(env_steps_per_s=0.0)[1]


def test_dashboard_figures_that_were_not_measured_are_not_shown():
    text = "\n".join(frame(gpus=(replace(GPU, power_w=None, utilisation_percent=None),), policy_lag_p50=None))
    assert "W" not in text.split("GPU 0", 1)[1].splitlines()[0]
    assert "in use" not in text
    assert "p50 -" in text


def test_dashboard_ascii_frame_is_pure_ascii_whatever_the_messages_say():
    out = StringIO()
    dashboard = Dashboard(Console(file=out, width=80, height=24, force_terminal=True, color_system=None), HEADER, ASCII)
    dashboard.start()
    now = sample(SHARES)
    dashboard.update(now, judge(now, "sync"), ["Schlüssel \x1b[31m fehlt\nhier"], "training")
    dashboard.stop()
    assert out.getvalue().isascii()
    assert "Schl\\xfcssel ?[31m fehlt hier" in out.getvalue()


def test_dashboard_before_the_first_sample_shows_phase_and_notes():
    out = StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, color_system=None)
    dashboard = Dashboard(console, replace(HEADER, notes=("threads: learner 1",)), UNICODE)
    dashboard.start()
    dashboard.update(None, None, [], "starting")
    dashboard.stop()
    dashboard.stop()
    dashboard.update(None, None, [], "late")
    assert "starting" in out.getvalue()
    assert "threads: learner 1" in out.getvalue()
    assert "late" not in out.getvalue()


PROGRAM = """
import os, signal, sys
from rltrain.telemetry.plain import choose_display
from rltrain.telemetry.verdict import judge
from tests.telemetry.samples import HEADER, sample
from tests.telemetry.test_dashboard import SHARES
end = sys.argv[1]
now = sample(SHARES)
display = choose_display(sys.stdout, HEADER, dashboard=True)
def stop(number, frame):
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(143)
signal.signal(signal.SIGTERM, stop)
display.start()
try:
    for _ in range(3):
        display.update(now, judge(now, "async"), [], "training")
    if end == "error":
        raise RuntimeError("the error is visible")
    if end == "inside":
        display.update(now, judge(now, "async"), [], None)
    if end in ("SIGINT", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, end))
    if end == "no-stop":
        sys.exit(3)
finally:
    if end != "no-stop":
        display.stop()
"""


def run_on_terminal(end: str, **environment: str) -> tuple[int, str, bool]:
    """Run PROGRAM on a pseudo-terminal of 80x24; returns exit code, output, and whether the settings are as before."""
    controller, terminal = pty.openpty()
    try:
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        before = termios.tcgetattr(terminal)
        environ = os.environ | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment
        if "NO_COLOR" not in environment:
            environ.pop("NO_COLOR", None)
        command = [sys.executable, "-c", PROGRAM, end]
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
        output, deadline = b"", time.monotonic() + 30
        try:
            while process.poll() is None or select.select([controller], [], [], 0)[0]:
                assert time.monotonic() < deadline, "the program did not end"
                if select.select([controller], [], [], 0.05)[0]:
                    output += os.read(controller, 65536)
        finally:
            process.kill()
            process.wait(timeout=10)
        return process.returncode, output.decode(), termios.tcgetattr(terminal) == before
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize(
    ("end", "code", "last_words"),
    [
        ("normal", 0, ""), ("error", 1, "the error is visible"), ("inside", 1, "TypeError"),
        ("SIGINT", -2, "KeyboardInterrupt"), ("SIGTERM", 143, ""), ("no-stop", 3, ""),
    ],
)
def test_dashboard_terminal_is_restored_however_the_process_ends(end, code, last_words):
    returned, output, is_restored = run_on_terminal(end)
    assert returned == code
    assert is_restored
    assert re.findall(r"\x1b\[\?25[lh]", output)[-1] == "\x1b[?25h"
    assert "\x1b[?1049h" not in output
    after = output.rsplit("\x1b[?25h", 1)[1]
    assert last_words in after
    assert "During handling" not in after
    assert "\x1b[1A" not in output.rsplit("env-bound", 1)[1], "the last frame was erased"


def test_dashboard_no_color_keeps_every_character_and_no_colour():
    _, output, _ = run_on_terminal("normal", NO_COLOR="1")
    assert "█" in output
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", output)


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "", "LANG": "C", "LC_CTYPE": ""}])
def test_dashboard_in_the_c_locale_writes_ascii(locale):
    returned, output, _ = run_on_terminal("normal", **locale)
    assert returned == 0
    assert output.isascii()
    assert "# compute" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output)


def test_dashboard_on_a_dumb_terminal_is_plain_lines():
    _, output, _ = run_on_terminal("normal", TERM="dumb")
    assert "\x1b" not in output
    assert "201,234 steps/s" in output


def test_dashboard_says_how_full_the_replay_is_and_which_ratio_is_reached():
    header = replace(HEADER, replay_capacity=10_000)
    dashboard = Dashboard(Console(file=StringIO(), width=80, height=24, force_terminal=True), header, UNICODE)
    shown = sample(SHARES, replay_transitions=1_494, sample_share=0.03, env_steps_per_s=100.0, updates_per_s=25.0)
    lines = ["".join(text for text, _ in line) for line in dashboard.lines(shown, None, [], "training", 80, 24)]
    (line,) = (line for line in lines if line.startswith("replay"))
    assert "1,494 (15 %) of 10,000   0.25 updates per env step   drawing takes 3 %" in line
