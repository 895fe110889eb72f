from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from rltrain.config.load import LoadedConfig, config_from_dict
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.monitor import Monitor
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


def test_monitor_finish_failed_run_has_no_verdict(learner, capsys):
    counters, _ = learner
    monitor = monitor_of(counters)
    monitor.finish(SUMMARY | {"state": "failed", "exit_code": 6}, monitor.total())
    assert "verdict" not in capsys.readouterr().out
    assert monitor.summary_figures(monitor.total())["verdict"] == "no verdict: the run failed"
