"""Run folders: made, locked, found, listed; and every way in which making one can fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import pytest

from rltrain.errors import ConfigError
from rltrain.supervisor import rundir
from rltrain.supervisor.run_list import find_run, list_runs
from rltrain.supervisor.rundir import RunFolder, check_writable


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def finished_run(runs_dir, name, **summary):
    run = RunFolder.create(runs_dir, name)
    run.write_state({"pid": os.getpid(), "started": summary.pop("started", 1.0), "env_id": "CartPole-v1"})
    if summary:
        run.write_summary(summary)
    run.release()
    return run.path


def test_create_makes_the_folder_with_its_parts(tmp_path):
    run = RunFolder.create(tmp_path / "deep" / "runs", "cartpole")
    assert run.path.parent == tmp_path / "deep" / "runs"
    assert run.path.name.startswith("cartpole-20")
    assert everything_below(run.path) == ["checkpoints", "lock", "logs", "tensorboard"]
    assert (run.logs, run.checkpoints) == (run.path / "logs", run.path / "checkpoints")
    run.write_config("[env]\nid = 'CartPole-v1'")
    assert (run.path / "config.toml").read_text() == "[env]\nid = 'CartPole-v1'\n"
    run.release()
    run.release()


def test_create_twice_in_a_second_gives_two_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    runs = [RunFolder.create(tmp_path, "a") for _ in range(3)]
    assert [run.path.name for run in runs] == ["a-20260102-030405", "a-20260102-030405-2", "a-20260102-030405-3"]
    for run in runs:
        run.release()


def file_in_the_way(tmp_path):
    (tmp_path / "runs").write_text("a file")
    return tmp_path / "runs", "is a file, not a folder"


def file_as_parent(tmp_path):
    (tmp_path / "file").write_text("a file")
    return tmp_path / "file" / "runs", "is a file, not a folder"


def broken_link(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "nowhere")
    return tmp_path / "runs", "is a file, not a folder"


def name_too_long(tmp_path):
    return tmp_path / ("x" * 300), "File name too long"


@pytest.mark.parametrize("situation", [file_in_the_way, file_as_parent, broken_link, name_too_long])
def test_create_where_it_cannot_names_path_and_reason_and_leaves_nothing(tmp_path, situation):
    runs_dir, reason = situation(tmp_path)
    before = everything_below(tmp_path)
    with pytest.raises(ConfigError, match=reason) as caught:
        RunFolder.create(runs_dir, "a")
    assert str(runs_dir) in str(caught.value)
    assert "run.dir" in str(caught.value)
    assert everything_below(tmp_path) == before


def test_folder_with_a_nul_in_its_name_is_refused(tmp_path):
    uses = (lambda folder: RunFolder.create(folder, "a"), lambda folder: RunFolder.open("a", folder), check_writable)
    for use in uses:
        with pytest.raises(ConfigError):
            use(tmp_path / "a\0b")
    with pytest.raises(ConfigError, match="neither a run folder"):
        RunFolder.open("a\0b", tmp_path)


def test_create_with_an_impossible_name_removes_the_folders_it_made(tmp_path):
    with pytest.raises(ConfigError, match="File name too long"):
        RunFolder.create(tmp_path / "new" / "runs", "x" * 300)
    assert everything_below(tmp_path) == []


@pytest.fixture
def mount_small_disk(tmp_path):
    mounted = []

    def mount(options):
        folder = tmp_path / "disk"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_create_on_a_read_only_disk_is_refused(mount_small_disk):
    disk = mount_small_disk("ro")
    with pytest.raises(ConfigError, match="Read-only file system"):
        RunFolder.create(disk / "runs", "a")


def test_create_on_a_full_disk_is_refused_and_leaves_nothing(mount_small_disk):
    disk = mount_small_disk("size=64k")
    with open(disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(ConfigError, match="No space left"):
        RunFolder.create(disk / "runs", "a")
    assert everything_below(disk) == ["filler"]


def test_check_writable_creates_nothing(tmp_path):
    check_writable(tmp_path / "not" / "there")
    assert everything_below(tmp_path) == []


def test_open_of_an_open_run_is_refused_and_names_the_owner(tmp_path):
    run = RunFolder.create(tmp_path, "a")
    with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
        RunFolder.open(run.path, tmp_path)
    run.release()
    RunFolder.open(run.path, tmp_path).release()


def test_lock_of_a_killed_owner_is_free_while_its_child_lives_on(tmp_path):
    code = (
        "import subprocess, sys, time; from pathlib import Path; from rltrain.supervisor.rundir import RunFolder\n"
        "run = RunFolder.create(Path(sys.argv[1]), 'a')\n"
        "child = subprocess.Popen(['sleep', '60'], close_fds=False, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, run.path, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    child, path = owner.stdout.readline().split()
    assert list_runs(tmp_path)[0].state == "running"
    with pytest.raises(ConfigError, match=f"pid {owner.pid}"):
        RunFolder.open(path, tmp_path)
    owner.kill()
    owner.communicate(timeout=10)
    assert list_runs(tmp_path)[0].state == "killed"
    RunFolder.open(path, tmp_path).release()
    os.kill(int(child), signal.SIGKILL)


def test_open_finds_a_run_by_path_name_and_latest(tmp_path):
    old = finished_run(tmp_path, "old", started=10.0)
    new = finished_run(tmp_path, "new", started=20.0)
    for wanted, expected in ((old, old), (str(old), old), (old.name, old), ("latest", new)):
        run = RunFolder.open(wanted, tmp_path)
        assert run.path == expected
        run.release()


def test_open_of_an_unknown_run_names_the_nearest(tmp_path):
    path = finished_run(tmp_path, "cartpole")
    with pytest.raises(ConfigError, match=path.name):
        RunFolder.open("cartpol", tmp_path)
    (tmp_path / "empty").mkdir()
    for wanted in ("latest", "cartpole"):
        with pytest.raises(ConfigError, match="no run in"):
            RunFolder.open(wanted, tmp_path / "empty")
    with pytest.raises(ConfigError, match="neither a run folder nor"):
        RunFolder.open(tmp_path / "empty", tmp_path)


def test_list_runs_reads_summaries_newest_first(tmp_path):
    finished_run(tmp_path, "b", started=2.0, state="finished", env_steps=500, return_mean=475.5, duration_s=7.0)
    finished_run(tmp_path, "a", started=3.0)
    running = RunFolder.create(tmp_path, "c")
    running.write_state({"pid": 1, "started": 9.0, "env_id": "x"})
    runs = list_runs(tmp_path)
    assert [(run.name[0], run.state) for run in runs] == [("c", "running"), ("a", "killed"), ("b", "finished")]
    assert (runs[2].env_steps, runs[2].return_mean, runs[2].duration_s) == (500, 475.5, 7.0)
    assert (runs[1].env_steps, runs[1].return_mean, runs[1].duration_s) == (None, None, None)
    running.release()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"state": 3, "env_steps": "x", "return_mean": NaN, "started": null}', "\udcff"]
)
def test_list_runs_with_foreign_folders_and_damaged_files_goes_on(tmp_path, damage):
    path = finished_run(tmp_path, "a", state="finished")
    for name in (rundir.SUMMARY, rundir.STATE):
        (path / name).write_text(damage, errors="surrogateescape")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (run,) = list_runs(tmp_path)
    assert run.path == path
    assert (run.env_steps, run.return_mean) == (None, None)


def test_list_runs_without_the_folder_is_empty(tmp_path):
    assert list_runs(tmp_path / "nowhere") == []


def test_resumed_run_forgets_its_old_summary(tmp_path):
    path = finished_run(tmp_path, "a", state="finished", env_steps=5)
    run = RunFolder.open(path, tmp_path)
    before = time.time()
    run.write_state({"env_id": "x"})
    run.release()
    assert list_runs(tmp_path)[0].state == "killed"
    state = json.loads((path / "state.json").read_text())
    assert (state["pid"], state["env_id"]) == (os.getpid(), "x")
    assert before <= state["started"] <= time.time()


def checkpoint(run: RunFolder, env_steps: int, at_s: float) -> None:
    path = run.checkpoints / f"checkpoint-{env_steps:012d}.pt"
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr(zipfile.ZipInfo("state"), b"0" * 100)
    os.utime(path, (at_s, at_s))


def test_list_runs_counts_the_time_of_all_parts_and_the_steps_of_the_last_checkpoint(tmp_path, monkeypatch):
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    run = RunFolder.create(tmp_path, "a")
    run.write_state({})
    run.write_summary({"state": "stopped", "env_steps": 2000, "duration_s": 40.0})
    run.write_state({})  # resumed
    now += 7
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.env_steps, listed.duration_s) == ("running", None, 47.0)
    checkpoint(run, 3000, now)
    checkpoint(run, 1000, now - 60)
    now += 100  # and killed
    run.release()
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.env_steps, listed.duration_s) == ("killed", 3000, 47.0)
    run.write_state({})  # resumed once more
    run.write_summary({"state": "finished", "env_steps": 5000, "duration_s": 3.0})
    (listed,) = list_runs(tmp_path)
    assert (listed.state, listed.env_steps, listed.duration_s) == ("finished", 5000, 50.0)


def test_list_runs_does_not_count_the_steps_of_checkpoints_that_are_cut_short(tmp_path):
    run = RunFolder.create(tmp_path, "a")
    for env_steps, num_bytes in ((3000, 0), (2000, 80)):
        checkpoint(run, env_steps, 1.0)
        os.truncate(run.checkpoints / f"checkpoint-{env_steps:012d}.pt", num_bytes)
    assert list_runs(tmp_path)[0].env_steps is None
    checkpoint(run, 1000, 1.0)
    assert list_runs(tmp_path)[0].env_steps == 1000


def test_write_summary_with_nan_is_json_for_every_tool(tmp_path):
    path = finished_run(tmp_path, "a", state="stopped", return_mean=float("nan"), env_steps=3)
    assert json.loads((path / "summary.json").read_text()) == {"state": "stopped", "return_mean": None, "env_steps": 3}


def test_write_summary_on_a_full_disk_leaves_the_old_one(mount_small_disk):
    disk = mount_small_disk("size=64k")
    run = RunFolder.create(disk, "a")
    run.write_summary({"state": "finished"})
    with pytest.raises(ConfigError, match=r"summary\.json: No space left"):
        run.write_summary({"state": "finished", "text": "x" * 70_000})
    run.release()
    assert list_runs(disk)[0].state == "finished"
    assert not list(run.path.glob(".*"))


def test_rundir_imports_no_torch():
    code = "import sys, rltrain.supervisor.rundir, rltrain.supervisor.logs; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_find_run_takes_the_name_that_was_given_as_the_newest_run_of_that_name(tmp_path):
    finished_run(tmp_path, "cart", started=1.0)
    newest = finished_run(tmp_path, "cart", started=2.0)
    finished_run(tmp_path, "cart-pole", started=3.0)
    assert find_run("cart", tmp_path) == newest
    with pytest.raises(ConfigError, match="Nearest: cart-"):
        find_run("card", tmp_path)
