"""Whole runs killed while they save, on a disk that is full, and where nothing can be written."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import LIMIT_S, Running, memory_maps, resume, train, until

pytestmark = pytest.mark.timeout(300)

# -- killed while saving ----------------------------------------------------------------------------------------------

ALWAYS_SAVING = {
    "run.total_env_steps": 10**9, "checkpoint.every_env_steps": 1, "checkpoint.keep": 2, "actors.num_actors": 1,
    "pipeline.inference": "local", "log.tensorboard": False,
}  # fmt: skip
NUM_KILLS = [3, pytest.param(200, marks=[pytest.mark.stress, pytest.mark.timeout(3600)])]
LEFTOVER = ".checkpoint-000000000001.pt.tmp"
"""Of an env step at which no later save begins again."""


def saved(folder: Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("checkpoint-*.pt"))


def kill(run: Running) -> None:
    """Kill the whole process group; nothing lives on."""
    os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait(LIMIT_S)
    until(lambda: not run.survivors(), "no process is left", limit_s=20)


def in_dev_shm(run: Running) -> list[str]:
    """Return the processes of a run that have mapped or opened something of /dev/shm."""
    found = [name for name, process in run.children().items() if "/dev/shm" in memory_maps(process.pid)]
    for process in run.survivors():
        for fd in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found += [f"{process.pid}: {fd}"] if os.readlink(fd).startswith("/dev/shm") else []
    return found


def has_saved_beyond(run: Running, folder: Path, env_steps: int) -> bool:
    return run.ended_or(lambda: max(saved(folder), default=-1) > env_steps)


@pytest.mark.parametrize("num_kills", NUM_KILLS)
def test_run_killed_while_saving_resumes_from_the_newest_save_each_time(tmp_path, num_kills):
    """Case C01; and a second run in the same folder is refused while the first one lives.

    200 kills take 320 s.
    """
    rng = random.Random(num_kills)
    with train(tmp_path, ALWAYS_SAVING) as run:
        until(lambda: run.ended_or(run.has_checkpoint), "a checkpoint")
        folder = run.folder() / "checkpoints"
        assert in_dev_shm(run) == []
        with resume(tmp_path) as second:
            refused = second.end()
        assert refused.returncode == 2
        assert f"is open in another process, pid {run.process.pid}. " in refused.stderr
        assert run.process.poll() is None
        kill(run)
    newest = loaded_env_steps(folder)
    for i in range(num_kills):
        (folder / LEFTOVER).touch()
        with resume(tmp_path) as run:
            if i % 4 == 3:  # at any moment of the start
                pause(rng.uniform(0, 2))
            else:
                until(lambda: has_saved_beyond(run, folder, newest), "a further checkpoint")  # noqa: B023
                assert run.process.poll() is None, run.err.read_text()
                assert not (folder / LEFTOVER).exists()
                pause(rng.uniform(0, 0.1))
            seen = max(saved(folder))
            kill(run)
        before, newest = newest, loaded_env_steps(folder)
        assert newest >= max(seen, before)
        assert len(list(folder.glob(".*.tmp"))) <= 1 + (folder / LEFTOVER).exists()
        if f"steps {before:,} " not in run.out.read_text():
            assert i % 4 == 3, "it went on exactly where the newest save is"
    assert len(saved(folder)) <= 4, "two newest, the best, and the one of a kill before the oldest was removed"


def pause(seconds: float) -> None:
    moment = time.monotonic() + seconds
    while time.monotonic() < moment:
        pass


def loaded_env_steps(folder: Path) -> int:
    """Load the newest checkpoint, which must be whole."""
    checkpoint, warnings, path = CheckpointStore.load(folder)
    assert warnings == []
    assert checkpoint["env_steps"] == max(saved(folder)) == int(path.stem.split("-")[1])
    return checkpoint["env_steps"]


# -- a full disk ------------------------------------------------------------------------------------------------------

DISK_BYTES = 4 << 20
PACED = {
    "env.id": "tests.rude_envs:Paced", "run.total_env_steps": 16_384, "checkpoint.every_env_steps": 128,
    "log.every_env_steps": 128,
}  # fmt: skip
NO_ROOM = r"No space left on device \(([\d,]+) bytes needed, ([\d,]+) bytes free\)"


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", folder]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filler", "ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def on_disk(disk: Path, directory: Path, **options) -> tuple[dict, Path]:
    """Put the runs of a directory on the disk; returns the options of a paced run, and the file that paces it."""
    directory.mkdir()
    (disk / directory.name).mkdir()
    (directory / "runs").symlink_to(disk / directory.name)
    flag = directory / "flag"
    flag.touch()
    return {**PACED, "env.kwargs.flag": str(flag), **options}, flag


@pytest.fixture(scope="module")
def full(disk, tmp_path_factory):
    """Two runs on a disk that fills up: one ends on it, the other after it is free again."""
    base = tmp_path_factory.mktemp("full")
    many = {"checkpoint.every_env_steps": 16, "checkpoint.keep": 1000, "checkpoint.keep_best": False}
    (patient, pace), (doomed, doom) = on_disk(disk, base / "freed"), on_disk(disk, base / "full", **many)
    found = {}
    with open("/dev/full", "w") as nowhere, open(base / "stderr.txt", "w") as err, open(os.devnull) as nothing:
        streams = (nothing.fileno(), nowhere.fileno(), err.fileno())
        with train(base / "freed", patient) as one, train(base / "full", doomed, streams=streams) as two:
            until(lambda: one.ended_or(one.has_checkpoint) and two.ended_or(two.has_checkpoint), "checkpoints")
            fill(disk)
            at = pace.stat().st_size
            until(lambda: one.ended_or(lambda: pace.stat().st_size > at + 2500), "some saves that find no room")
            found["loaded"] = [CheckpointStore.load(run.folder()) for run in (one, two)]
            doom.unlink()
            found["two"], found["two's folder"] = two.end(), two.folder()
            folder = one.folder() / "checkpoints"
            newest = max(saved(folder))
            (disk / "filler").unlink()
            until(lambda: has_saved_beyond(one, folder, newest), "a checkpoint after that")
            assert one.process.poll() is None, "it was not the last one"
            pace.unlink()
            found["one"] = one.end()
    found["said"] = (base / "stderr.txt").read_text()
    return found


def test_run_on_a_full_disk_goes_on_warns_again_and_again_and_saves_when_there_is_room(full):
    """Case C02."""
    ended = full["one"].finished()
    assert ended.stderr == ""
    told = re.findall(NO_ROOM, ended.stdout)
    assert len(told) >= 2, "the first and the second save; more are in the logs"
    assert len(told) <= 8, "no flood"
    assert "TensorBoard files cannot be written" in ended.stdout
    for needed, free in told:
        assert 10_000 < int(needed.replace(",", "")) < 100_000
        assert int(free.replace(",", "")) < int(needed.replace(",", ""))
    assert ended.summary["env_steps"] >= PACED["run.total_env_steps"]
    assert max(saved(ended.folder / "checkpoints")) == ended.summary["env_steps"]
    assert "checkpoints will not fit" not in ended.stdout
    assert len(ended.log("actor-0")) > 1000


def test_checkpoint_from_before_the_disk_was_full_loads_while_it_is(full):
    for checkpoint, warnings, _ in full["loaded"]:
        assert warnings == []
        assert checkpoint["env_steps"] > 0


def test_run_whose_last_save_finds_no_room_ends_with_five_and_says_so(full):
    """Its standard output is on a full disk too."""
    assert full["two"].returncode == 5
    assert re.search(r"error: (learner: )?writing a checkpoint failed, there is no room: .*" + NO_ROOM, full["said"])
    assert "Earlier checkpoints are untouched. Free some space" in full["said"]
    assert "Traceback" not in full["said"]
    steps = [checkpoint["env_steps"] for checkpoint, _, _ in full["loaded"]]
    assert CheckpointStore.load(full["two's folder"])[0]["env_steps"] == steps[1]


def test_run_whose_checkpoints_will_not_fit_says_so_at_its_start(full):
    """1,000 of some 20 KB on 4 MiB."""
    log = (full["two's folder"] / "logs" / "supervisor.log").read_text()
    assert re.search(r"checkpoints will not fit: 1001 more of about [\d,]+ bytes come into .* bytes free\)", log)


# -- nothing can be written -------------------------------------------------------------------------------------------


def mounting(*options: str) -> tuple[str, ...]:
    """Return a prefix that runs a command with something mounted at ./runs."""
    return ("unshare", "-m", "sh", "-c", f'mkdir -p runs && mount {" ".join(options)} runs && exec "$@"', "sh")


OWN = """
from pathlib import Path
from tests.toy_envs import Count

Path(__file__).with_name("started").touch()
make_env = Count
"""
UNWRITABLE = {
    "a read-only disk": (mounting("-t tmpfs", "-o ro none"), "Read-only file system"),
    "no file left": (mounting("-t tmpfs", "-o nr_inodes=1 none"), r"No space left on device for further files"),
    "few files left": (mounting("-t tmpfs", "-o nr_inodes=9 none"), r"No space left on device for further files"),
    "a file in its place": ((), "is a file, not a folder"),
}


@pytest.mark.parametrize("where", UNWRITABLE)
def test_run_where_nothing_can_be_written_is_refused_before_anything_starts(tmp_path, where):
    """Case C10."""
    prefix, reason = UNWRITABLE[where]
    if prefix and subprocess.run([*prefix, "true"], capture_output=True, check=False, cwd=tmp_path).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    if not prefix:
        (tmp_path / "runs").write_text("mine")
    (tmp_path / "own_code.py").write_text(OWN)
    started = time.monotonic()
    with train(tmp_path, {"env.id": "own_code:make_env"}, prefix=prefix) as run:
        ended = run.end()
        seconds = time.monotonic() - started
        assert run.survivors() == []
    assert ended.returncode == 2
    assert re.search(rf"^error: run\.dir = '{tmp_path}/runs' cannot be written: .*{reason}", ended.stderr)
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "started").exists(), "no process has imported the environment"
    assert seconds < 10, "0.7 s on an idle machine; 2 are the limit there"
