"""`tools/bench_peers.py` without any peer: settings, turns, what fails, the table, environments, what drivers say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltrain.bench.report import as_json, lines_of
from rltrain.config.load import load
from tests.bench.records import RECORD
from tools.peers import drive, venvs
from tools.peers.bench import PeersBench, Plan, fastest
from tools.peers.drive import Job, Measured, PeerError, figures_of
from tools.peers.libraries import PEERS, Side, cartpole_sides, combined, pong_sides, tuned_sides, written

ROOT = Path(__file__).parents[2]
OWN = Side("rltrain", None, ({},))
PLAN = Plan(turns=3, turn_s=1.0, probe_s=0.5, seeds=2, limit_s=60.0)


def bench_of(sides, measure, missing=None, plan=PLAN):
    bench = PeersBench(sides, plan, measure, missing or {}, [])
    bench.run(lambda *_: None)
    return bench


def rate(value):
    return Measured(value, 1.5, None)


def test_fastest_setting_is_the_one_with_the_highest_rate_of_those_that_have_one():
    slow, fast, none = {"num_envs": 8}, {"num_envs": 64}, {"num_envs": 1024}
    assert fastest([(slow, 10.0), (fast, 30.0), (none, None)]) == fast
    assert fastest([(none, None)]) is None


def test_each_side_takes_its_turns_at_its_fastest_setting():
    order = []

    def measure(side, job, options, is_watched):
        order.append((side.label, job.seconds, options))
        return rate(100.0 * options.get("num_envs", 1))

    peer = Side("peer", "a", combined(num_envs=(8, 64, 16)), {"vector": "dummy"})
    bench = bench_of({"cartpole": [OWN, peer]}, measure)
    probes, turns = [o for o in order if o[1] == 0.5], [o for o in order if o[1] == 1.0]
    assert [options["num_envs"] for _, _, options in probes] == [8, 64, 16]
    assert [label for label, _, _ in turns] == ["rltrain", "peer", "peer", "rltrain", "rltrain", "peer"]
    assert {tuple(options.items()) for label, _, options in turns if label == "peer"} == {
        (("vector", "dummy"), ("num_envs", 64))
    }
    table = bench.report(RECORD).tables[0]
    assert table.columns == ("", "per s", "rltrain, rltrain / it", "fastest setting")
    label, figure, times, setting = table.rows[1]
    assert (label, figure.values, times.values, setting) == ("peer", [6400] * 3, [1 / 64] * 3, "num_envs 64")


def test_quick_takes_the_first_setting_and_measures_once():
    taken = []
    sides = {"cartpole": [Side("peer", "a", combined(num_envs=(64, 8)))]}
    bench_of(sides, lambda side, job, options, w: taken.append(options) or rate(1.0), plan=Plan.quick())
    assert taken == [{"num_envs": 64}]


def test_peer_that_fails_is_named_and_the_others_go_on():
    def measure(side, job, options, is_watched):
        if side.label == "broken":
            raise PeerError("exit code 1: ImportError: no such thing")
        return rate(5.0)

    sides = {"cartpole": [OWN, Side("broken", "b", combined(num_envs=(8, 64))), Side("absent", "c", ({"x": 1},))]}
    sides["cartpole"].append(Side("its own env", "d", ({"x": 1},)))
    bench = bench_of(sides, measure, {"c": "pip install c: not done after 600 s", "its own env": "needs d2"})
    report = bench.report(RECORD)
    rows = {row[0]: row for row in report.tables[0].rows}
    assert rows["rltrain"][1].values == [5.0] * 3
    assert rows["broken"][1:] == ("failed", rows["broken"][2], "")
    assert (rows["absent"][1], rows["its own env"][1]) == ("not installed", "not installed")
    assert "cartpole, broken, setting num_envs 64: exit code 1: ImportError: no such thing" in report.notes
    text = "\n".join(lines_of(report))
    assert "failed" in text
    assert json.loads(json.dumps(as_json(report)))["tables"][0]["rows"][1][1] == "failed"


def test_setting_that_fails_is_not_chosen_and_does_not_mark_its_side():
    def measure(side, job, options, is_watched):
        if options["num_envs"] == 1024:
            raise PeerError("out of memory")
        return rate(float(options["num_envs"]))

    sides = {"cartpole": [Side("peer", "a", combined(num_envs=(8, 64, 1024)))]}
    bench = bench_of(sides, measure, plan=Plan(turns=0))
    assert bench.rows["cartpole"][0].chosen == {"num_envs": 64}
    assert bench.rows["cartpole"][0].reason == ""


def test_seed_that_does_not_reach_the_return_counts_as_the_whole_time():
    jobs = []

    def measure(side, job, options, is_watched):
        jobs.append((job.work, job.to_target, job.seed))
        return Measured(None, 1.0, 12.5 if job.seed == 1 else None)

    bench = bench_of({"threshold": [OWN]}, measure)
    assert jobs == [("cartpole", True, 1), ("cartpole", True, 2)]
    assert bench.report(RECORD).tables[0].rows[0][1].values == [12.5, 60.0]
    assert bench.report(RECORD).tables[0].rows[0][2] == "1 of 2"


def test_start_watches_memory_and_nothing_else_does():
    seen = []

    def measure(side, job, options, is_watched):
        seen.append(is_watched)
        return Measured(1.0, 2.5, None, peak_bytes=3 * 2**20)

    bench = bench_of({"start": [OWN], "pong": [OWN]}, measure)
    assert seen == [False] * 3 + [True] * 3
    label, first, memory = bench.report(RECORD).tables[1].rows[0]
    assert (label, first.values, memory.values) == ("rltrain", [2.5] * 3, [3.0] * 3)


def test_figures_are_the_last_json_line_among_what_a_library_prints():
    noise = '{"env_steps_per_s": 1}\nhello\n{"env_steps_per_s": 2.0}\nray says goodbye {not json}\n{broken\n'
    assert figures_of(noise) == {"env_steps_per_s": 2.0}
    with pytest.raises(PeerError, match="Killed"):
        figures_of("starting\nKilled\n")


def script(folder, text):
    path = folder / "driver.py"
    path.write_text(text)
    return path


METER = f"""
import sys, time
sys.path.insert(0, {str(drive.CONFIGS.parent / "tools/peers/drivers")!r})
from meter import Meter, read_job
meter, steps, mean = Meter(read_job()), 0, 0.0
while not meter.learned(steps, mean):
    time.sleep(0.01)
    steps += 10
    mean += 10.0
print("noise")
meter.finish()
"""


def test_driver_is_measured_from_the_end_of_its_first_update_on(tmp_path):
    found = drive.drive(Path(sys.executable), script(tmp_path, METER), Job("cartpole", 0.2), {}, is_watched=True)
    assert 100 < found.env_steps_per_s <= 1000
    assert 0 < found.first_update_s < 20
    assert found.seconds_to_target is None
    assert found.peak_bytes > 2**20


def test_driver_says_when_the_return_is_reached(tmp_path):
    found = drive.drive(Path(sys.executable), script(tmp_path, METER), Job("cartpole", 30, to_target=True), {})
    assert found.first_update_s < found.seconds_to_target < 30


def test_driver_that_dies_or_hangs_is_told_with_its_last_line_and_leaves_no_process(tmp_path, monkeypatch):
    died = script(tmp_path, "import sys; print('cannot load libGL'); sys.exit(3)")
    with pytest.raises(PeerError, match="exit code 3: cannot load libGL"):
        drive.drive(Path(sys.executable), died, Job("cartpole", 1), {})
    monkeypatch.setattr(drive, "_BOOT_S", 1.0)
    hangs = script(tmp_path, (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print('waiting for', child.pid, flush=True)\ntime.sleep(60)\n"
    ))  # fmt: skip
    began = time.monotonic()
    with pytest.raises(PeerError, match=r"not done after 1.5 s: waiting for \d+") as caught:
        drive.drive(Path(sys.executable), hangs, Job("cartpole", 0.5), {})
    assert time.monotonic() - began < 20
    left = Path("/proc", str(caught.value).split()[-1], "stat")
    while left.exists() and left.read_text().split()[2] != "Z":
        assert time.monotonic() - began < 20, "what it started goes on"


def test_environment_is_made_once_with_the_first_way_that_works(tmp_path, monkeypatch):
    calls = []

    def pip(command, limit_s, environment=None):
        calls.append(command)
        if "list" in command:
            return subprocess.CompletedProcess(command, 0, '[{"name": "Good_One", "version": "1.2"}]', "")
        failed = "bad" in command
        return subprocess.CompletedProcess(command, int(failed), "", "wrong\nERROR: no match\n" if failed else "")

    monkeypatch.setattr(venvs, "_output", pip)
    monkeypatch.setattr(venvs.subprocess, "run", lambda command, **_: Path(command[-1]).mkdir())
    ways = (venvs.Way((("bad",),)), venvs.Way((("good",), ("--no-deps", "more"))))
    found = venvs.install(tmp_path / "new/peer", ways, 5.0, lambda _: None)
    assert found.versions == {"good-one": "1.2"}
    assert found.failed == ("pip install bad: ERROR: no match",)
    assert found.python == tmp_path / "new/peer/bin/python"
    count = len(calls)
    assert venvs.install(tmp_path / "new/peer", ways, 5.0, lambda _: None) == found
    assert len(calls) == count, "the environment was there"
    with pytest.raises(venvs.InstallError, match="pip install bad: ERROR: no match"):
        venvs.install(tmp_path / "new/peer", ways[:1], 5.0, lambda _: None)
    assert all("-c" in command for command in calls if "install" in command)


def test_error_of_a_failed_install_is_found_among_its_hints():
    said = "  urllib.error.HTTPError: HTTP Error 403: Forbidden\n\nnote: not pip's\nhint: See above for details.\n"
    assert venvs.last_line(said) == "urllib.error.HTTPError: HTTP Error 403: Forbidden"
    assert venvs.last_line("one\ntwo\n\n") == "two"
    assert venvs.last_line("") == "nothing was said"


def test_install_that_takes_too_long_is_named(tmp_path, monkeypatch):
    def pip(command, limit_s, environment=None):
        raise subprocess.TimeoutExpired(command, limit_s)

    monkeypatch.setattr(venvs, "_output", pip)
    monkeypatch.setattr(venvs.subprocess, "run", lambda command, **_: Path(command[-1]).mkdir())
    with pytest.raises(venvs.InstallError, match="pip install slow: not done after 5 s"):
        venvs.install(tmp_path / "peer", (venvs.Way((("slow",),)),), 5.0, lambda _: None)


def test_torch_is_pinned_in_every_environment():
    text = venvs.CONSTRAINTS.read_text()
    assert venvs.constraints(text, only_torch=True).startswith("torch==")
    assert venvs.constraints(text, only_torch=True).count("\n") == 1
    assert "numpy==" in venvs.constraints(text, only_torch=False)
    for peer in PEERS.values():
        assert peer.driver.is_file()
        assert all("torch" in way.calls[0] for way in peer.ways)


def test_settings_of_rltrain_are_options_that_it_has():
    for sides, name in ((cartpole_sides(2), "cartpole"), (pong_sides(2), "pong"), (tuned_sides(2), "cartpole")):
        own = [side for side in sides if side.peer is None]
        assert own
        for side in own:
            for options in side.settings:
                sets = [part for k, v in (side.fixed | options).items() for part in (f"{k}={v}",)]
                load(ROOT / f"configs/{name}.toml", sets)
        assert {side.peer for side in sides} == {None, *PEERS}


def test_settings_are_written_short():
    assert written({"actors.envs_per_group": 8, "async": True}) == "envs_per_group 8, async true"
    assert combined(a=(1, 2), b=(3, 3)) == ({"a": 1, "b": 3}, {"a": 2, "b": 3})


def test_tool_says_how_it_is_used_and_refuses_what_it_does_not_know():
    command = [sys.executable, str(ROOT / "tools/bench_peers.py"), "--only", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "stable-baselines3" in done.stderr
