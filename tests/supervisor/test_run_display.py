"""Runs whose display fails, on a pseudo-terminal: training goes on, and the terminal is given back. Case T01."""

from __future__ import annotations

import sys

import pytest

from tests.runs import toy, until
from tests.supervisor.test_run_terminal import HIDE, SHOW, Terminal

pytestmark = pytest.mark.timeout(300)

BREAKING = """
import fcntl, importlib, sys, termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
module, path, calls = {place!r}.partition(":")[0], {place!r}.partition(":")[2].split("."), 0
owner = importlib.import_module(module)
for name in path[:-1]:
    owner = getattr(owner, name)
method = getattr(owner, path[-1])

def broken(*args, **kwargs):
    global calls
    calls += 1
    if calls >= {call}:
        raise ZeroDivisionError("nothing to show")
    return method(*args, **kwargs)

setattr(owner, path[-1], broken)
from rltrain.cli import main

main(sys.argv[4:])  # behind python -m rltrain
"""
"""A program that lets one function raise, from one of its calls on, and then calls the command line."""
PLACES = {
    "a panel": ("rltrain.telemetry.panels:ring", 1, "the dashboard"),
    "drawing": ("rich.live_render:LiveRender.__rich_console__", 2, "the dashboard"),
    "the verdict": ("rltrain.telemetry.monitor:judge", 1, "the verdict"),
    "the summary": ("rltrain.telemetry.monitor:closing_summary", 1, "the closing summary"),
    "taking the terminal": ("rltrain.telemetry.dashboard:Dashboard.start", 1, "the dashboard"),
    "samples": ("rltrain.telemetry.ledger:Ledger._between", 1, "taking a sample"),
    "curves": ("rltrain.telemetry.tensorboard:TensorboardWriter.scalars", 2, "writing curves"),
}
ALL = ["drawing", *(pytest.param(name, marks=pytest.mark.stress) for name in PLACES if name != "drawing")]
"""The others take twenty seconds."""
TOTAL = 10_000


@pytest.mark.parametrize("name", ALL)
def test_run_goes_on_and_gives_the_terminal_back_when_its_display_fails(tmp_path, name):
    place, call, what = PLACES[name]
    code = BREAKING.format(place=place, call=call)
    terminal = Terminal(tmp_path, {**toy("Count", n=20), "run.total_env_steps": TOTAL}, (sys.executable, "-c", code))
    try:
        ended, after = terminal.end()
        until(lambda: not terminal.run.survivors(), "no process is left", limit_s=15)
    finally:
        terminal.run.__exit__()
    screen = bytes(terminal.screen)
    assert ended.returncode == 0, ended.stdout
    assert ended.summary["state"] == "finished"
    assert ended.summary["env_steps"] >= TOTAL
    assert ended.checkpoints
    assert after == terminal.before
    assert screen.rfind(SHOW) >= screen.rfind(HIDE)
    assert (HIDE in screen) is (name != "taking the terminal")
    told = f"{what} failed (ZeroDivisionError: nothing to show)"
    log = ended.log("supervisor")
    assert 1 <= log.count("Traceback") <= 4, "once for each thing that fails, however often"
    assert "ZeroDivisionError: nothing to show" in log
    assert "Traceback" not in ended.stdout
    if what == "the dashboard":
        assert f"warning: {told}; going on with plain lines" in ended.stdout
        assert f"steps {ended.summary['env_steps']:,} (100 %)" in ended.stdout
    assert told in log
