from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rltrain.config.load import LoadedConfig, config_from_dict
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.monitor import LONG_EPISODE_STEPS, Monitor
from rltrain.telemetry.plain import PlainLines
from tests.telemetry.samples import HEADER, RING, row

pytestmark = pytest.mark.timeout(60)

SUMMARY = {
    "state": "finished", "reason": "finished", "env_steps": 1536, "updates": 3, "duration_s": 4.0, "exit_code": 0,
    "run_folder": "runs/a", "restarts": 0, "checkpoint": "runs/a/checkpoints/c.pt",
}


@pytest.fixture
def learner():
    """A learner's row and the process that it belongs to."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield row("learner", pid=child.pid), child
    child.kill()
    child.communicate(timeout=10)


def monitor_of(counters) -> Monitor:
    config = config_from_dict({"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}})
    monitor = Monitor(LoadedConfig(config, {}, None, []), dashboard=False)
    monitor.ledger = Ledger([("learner", counters)], lambda: RING, monitor.gpus)
    monitor.header = replace(HEADER, target_return=None)
    monitor.display = PlainLines(sys.stdout, monitor.header)
    return monitor


def test_monitor_finish_shows_the_last_counts_after_the_warnings(learner, capsys):
    counters, _ = learner
    monitor = monitor_of(counters)
    counters.set("env_steps", 1024)
    monitor.tick()
    total = monitor.total()
    counters.set("env_steps", 1536)
    monitor.warn("stopping")
    monitor.finish(SUMMARY, total)
    lines = capsys.readouterr().out.splitlines()
    assert "steps 1,024" in lines[0]
    assert lines[1] == "warning: stopping"
    assert "steps 1,536" in lines[2]
    assert lines[3] == ""


def test_monitor_summary_figures_have_the_memory_of_processes_that_ended(learner):
    counters, child = learner
    monitor = monitor_of(counters)
    monitor.tick()
    child.kill()
    child.wait(timeout=10)
    total = monitor.total()
    monitor.finish(SUMMARY, total)
    figures = json.loads(json.dumps(monitor.summary_figures(total)))
    assert figures["rss_bytes"]["learner"] > 2**20
    assert figures["verdict"].startswith("no verdict")


@pytest.mark.parametrize(
    ("pipeline", "device"),
    [({}, "cuda:1"), ({"inference_device": "cpu"}, "cpu"), ({"inference_device": "cuda:0"}, "cuda:0"),
     ({"inference": "local"}, "cpu")],
)  # fmt: skip
def test_monitor_summary_figures_name_the_device_of_the_actions(learner, pipeline, device):
    monitor = monitor_of(learner[0])
    monitor.header = replace(monitor.header, device="cuda:1")
    config = {"env": {"id": "CartPole-v1"}, "algo": {"name": "ppo"}, "pipeline": pipeline}
    monitor.config = config_from_dict(config)
    total = monitor.total()
    monitor.finish(SUMMARY, total)
    assert monitor.summary_figures(total)["inference_device"] == device


def test_monitor_finish_failed_run_has_no_verdict(learner, capsys):
    counters, _ = learner
    monitor = monitor_of(counters)
    monitor.finish(SUMMARY | {"state": "failed", "exit_code": 6}, monitor.total())
    assert "verdict" not in capsys.readouterr().out
    assert monitor.summary_figures(monitor.total())["verdict"] == "no verdict: the run failed"


@pytest.mark.parametrize("failing", ["sample", "window", "total"])
def test_monitor_whose_ledger_fails_tells_it_once_and_goes_on(learner, capsys, monkeypatch, failing):
    counters, _ = learner
    monitor = monitor_of(counters)

    def fail():
        raise KeyError("nothing there")

    monkeypatch.setattr(monitor.ledger, failing, fail)
    for _ in range(3):
        monitor.tick()
    total = monitor.total()
    monitor.finish(SUMMARY, total)
    json.dumps(monitor.summary_figures(total))
    out = capsys.readouterr().out
    assert out.count("(KeyError: 'nothing there'); the run goes on without") == (2 if failing == "sample" else 1)
    assert "finished: all env steps learned from" in out


def test_monitor_whose_plain_lines_fail_goes_on(learner, monkeypatch):
    counters, _ = learner
    monitor = monitor_of(counters)
    monkeypatch.setattr(monitor.display, "_line", lambda *_: 1 / 0)
    for _ in range(3):
        monitor.tick()
    assert [warning for warning in monitor.warnings if "showing the run failed" in warning] == list(monitor.warnings)
    assert len(monitor.warnings) == 1


def test_monitor_tick_tells_of_silence_unless_the_learner_may_be_compiling(learner, monkeypatch):
    counters, _ = learner
    monitor = monitor_of(counters)
    shown = []
    monkeypatch.setattr(monitor.display, "update", lambda sample, verdict, *_: shown.append(verdict.name))
    counters.enter("update")
    monkeypatch.setattr(type(counters), "heartbeat_age_s", 60.0)
    monitor.tick(is_learner_exempt=True)
    monitor.tick()
    assert shown == ["warming up", "stalled"]


@pytest.mark.parametrize("number", ["EPIPE", "EIO", "EBADF", "ENXIO", "ENOENT", "EMFILE"])
def test_monitor_whose_dashboard_cannot_write_says_so_unless_the_terminal_is_gone(learner, number):
    counters, _ = learner
    monitor = monitor_of(counters)

    def fail(*_, **__):
        raise OSError(getattr(errno, number), "no such luck")

    monitor.display = SimpleNamespace(update=fail, stop=lambda: None)
    monitor.tick()
    assert isinstance(monitor.display, PlainLines)
    if number in ("ENOENT", "EMFILE"):
        (warning,) = monitor.warnings
        assert "the dashboard failed" in warning
        assert "no such luck" in warning
    else:
        assert not monitor.warnings


@pytest.mark.parametrize("has_limit", [False, True])
def test_monitor_warns_once_of_a_long_episode_without_time_limit(learner, has_limit):
    """Case E18."""
    counters, _ = learner
    monitor = monitor_of(counters)
    monitor.endless = None if has_limit else "Endless-v0"
    for length in (LONG_EPISODE_STEPS - 1, LONG_EPISODE_STEPS, 10 * LONG_EPISODE_STEPS):
        counters.set("longest_open", length)
        monitor.tick()
        assert len(monitor.warnings) == (not has_limit and length >= LONG_EPISODE_STEPS)
    if not has_limit:
        assert monitor.warnings[0].startswith("an episode runs for 10,000 env steps, and Endless-v0 has no time limit")
        assert "env.max_episode_steps" in monitor.warnings[0]
