"""Whole runs with content from elsewhere, and what a run opens to others: no command runs, nothing listens."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

import psutil
import pytest
import torch

from rltrain.workers.checkpoints import CheckpointStore
from tests.runs import Running, resume, train, until

pytestmark = pytest.mark.timeout(300)


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, flag: Path):
        self.flag = flag

    def __reduce__(self):
        return os.system, (f"touch {self.flag}",)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A run that goes on until all tests of this file have looked at it, with a checkpoint."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "flag").touch()
    paced = {"env.id": "tests.rude_envs:Paced", "env.kwargs.flag": str(folder / "flag"), "run.total_env_steps": 10**9}
    with train(folder, {**paced, "checkpoint.every_env_steps": 128, "eval.every_env_steps": 10**8}) as run:
        run.wait_training()
        until(lambda: run.ended_or(run.has_checkpoint), "a checkpoint")
        yield run


def test_checkpoint_whose_pickle_would_run_a_command_is_refused_unrun(running, tmp_path):
    flag, original = tmp_path / "flag", running.folder()
    state, _, _ = CheckpointStore.load(original)
    folder = tmp_path / "runs" / original.name
    shutil.copytree(original, folder, ignore=shutil.ignore_patterns("checkpoint*"))
    store = CheckpointStore(folder / "checkpoints", 2, False)
    path = store.save({**state, "version": Runs(flag)}, state["env_steps"], None)
    with Running(tmp_path / "eval", "eval", str(path)) as one, resume(tmp_path) as two:
        for ended in (one.end(), two.end()):
            assert ended.returncode == 5, ended.stderr
            said = f"{path} is damaged or not a checkpoint of rltrain: its content cannot be read"
            assert said in ended.stderr
            assert "Traceback" not in ended.stderr
            assert "weights_only" not in ended.stderr, "torch's own advice is to read it unsafely"
    assert not flag.exists()
    torch.load(path, weights_only=False)
    assert flag.exists(), "else this test could not fail"


PASSES_ON = """
from os import system
from subprocess import run
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"env.id": "os:system"}, "'os' is Python's own"),
        ({"env.id": "passes_on:system"}, "'posix' is Python's own"),
        ({"model.kind": "subprocess:run"}, "'subprocess' is Python's own"),
    ],
)
def test_configuration_that_names_a_command_is_refused_unrun(tmp_path, options, said):
    flag = tmp_path / "flag"
    (tmp_path / "passes_on.py").write_text(PASSES_ON)
    section = next(iter(options)).split(".")[0]
    argument = {"env": "command", "model": "args"}[section]
    kwargs = {f"{section}.kwargs.{argument}": f"touch {flag}"}
    with train(tmp_path, {**options, **kwargs}) as run:
        ended = run.end()
    assert ended.returncode == 2, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not flag.exists()


def listening(process: psutil.Process) -> set[str]:
    """Return the addresses at which a process takes connections."""
    found = process.net_connections(kind="inet")
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN or (c.type == 2 and not c.raddr)}


def test_no_process_of_a_run_listens(running):
    processes = running.survivors()
    assert len(processes) >= 7, "supervisor, two zygotes, learner, server, two actors"
    assert {address for process in processes for address in listening(process)} == set()


def test_board_listens_on_the_loopback_interface_alone(running):
    """The socket table of TensorBoard and all that it starts."""
    with Running(running.directory / "board", "board", str(running.directory / "runs")) as board:
        until(lambda: "127.0.0.1" in board.out.read_text(), "its address")
        addresses = {address for process in board.survivors() for address in listening(process)}
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}


def test_arena_of_a_run_is_its_users_alone_and_of_fixed_size(running):
    seen = 0
    for process in running.survivors():
        for fd in Path(f"/proc/{process.pid}/fd").iterdir():
            if os.path.lexists(fd) and os.readlink(fd).startswith("/memfd:rltrain"):
                seen += 1
                assert stat.S_IMODE(os.stat(fd).st_mode) == 0o600
                assert os.stat(fd).st_uid == os.getuid()
                assert seals(fd) == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert seen >= 5, "supervisor, learner, server, two actors"


def seals(fd: Path) -> int:
    with open(fd, "rb") as arena:
        return fcntl.fcntl(arena.fileno(), fcntl.F_GET_SEALS)
