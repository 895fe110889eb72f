"""The folder of a run: making it, locking it, writing what says how the run went.

Owns: `<run.dir>/<name>-<time>/` with `config.toml logs/ tensorboard/ checkpoints/ state.json summary.json lock`.
Written by: the supervisor; `checkpoints/` by the learner.
Read by: `run_list.py`, `eval`, `board`, and a resumed run.
Blocks on: the disk. Unblocked by: nothing.
If the process dies: the kernel drops its lock; a run without lock and summary counts as killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from rltrain.errors import ConfigError
from rltrain.supervisor.run_list import LOCK, STATE, SUMMARY, find_run, trained_s

CONFIG = "config.toml"
PARTS = ("logs", "tensorboard", "checkpoints")
NUM_FILES = 16
"""Files and folders that the smallest run makes."""


class RunFolder:
    """An open run folder; its lock is held until `release` or the end of the process.

    Made by `create` or `open`.

    Concurrency: one owner in the whole machine. The lock's descriptor is not inherited by child programs.
    """

    def __init__(self, path: Path, lock_fd: int):
        self.path = path
        self.logs, self.tensorboard, self.checkpoints = (path / part for part in PARTS)
        self._lock_fd: int | None = lock_fd

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> RunFolder:
        """Make `runs_dir/<name>-<YYYYmmdd-HHMMSS>`, with a number behind it when that exists, and lock it.

        Raises:
            ConfigError: it cannot be made or written; nothing is left behind.
        """
        runs_dir = Path(runs_dir).absolute()
        check_writable(runs_dir)
        made = [folder for folder in (runs_dir, *runs_dir.parents) if not os.path.exists(folder)]
        path = runs_dir
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            path = _make_unique(runs_dir, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
            for part in PARTS:
                (path / part).mkdir()
            return cls(path, _lock(path))
        except OSError as error:
            if path != runs_dir:
                shutil.rmtree(path, ignore_errors=True)
            _remove_empty(made)
            raise ConfigError(_unwritable(runs_dir, error.strerror or str(error))) from error

    @classmethod
    def open(cls, path_or_name: str | Path, runs_dir: Path) -> RunFolder:
        """Lock an existing run to resume it.

        Args:
            path_or_name: a run folder, the name of one in `runs_dir`, or `latest`.
            runs_dir: `run.dir`.

        Raises:
            ConfigError: there is no such run, or another process has it open.
        """
        path = find_run(path_or_name, runs_dir)
        try:
            for part in PARTS:
                (path / part).mkdir(exist_ok=True)
            lock = _lock(path)
        except OSError as error:
            raise ConfigError(_unwritable(path, error.strerror or str(error))) from error
        try:
            check_writable(path)
        except ConfigError:
            os.close(lock)
            raise
        return cls(path, lock)

    def write_config(self, text: str) -> None:
        """Write the resolved configuration, `config.toml`.

        Raises:
            ConfigError: as of the other two: the disk is full or gone; what was there before is untouched.
        """
        _write_atomically(self.path / CONFIG, text)

    def write_state(self, state: dict[str, Any]) -> None:
        """Write what is known at the start.

        Added: `pid`, `started` (seconds since 1970), and `earlier_s`, the time that a resumed run has already taken.
        A summary of an earlier part is removed, as it no longer holds.
        """
        known = {"pid": os.getpid(), "started": time.time(), "earlier_s": trained_s(self.path) or 0.0}
        _write_atomically(self.path / STATE, _to_json(known | state))
        (self.path / SUMMARY).unlink(missing_ok=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write how the run ended, `summary.json`.

        `run_list` reads `state`, `env_steps`, `return_mean`, `duration_s`.
        """
        _write_atomically(self.path / SUMMARY, _to_json(summary))

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def check_writable(runs_dir: Path) -> None:
    """Find out whether run folders can be made, with nothing left behind.

    The nearest folder that exists is probed: a file is written, synced to disk and removed.

    Raises:
        ConfigError: a file is in the way, no permission, a read-only disk, or no space.
    """
    runs_dir = Path(runs_dir).absolute()
    if "\0" in str(runs_dir):
        raise ConfigError(_unwritable(runs_dir, "the system accepts no NUL in names of files"))
    existing = next(folder for folder in (runs_dir, *runs_dir.parents) if os.path.lexists(folder))
    if not existing.is_dir():
        raise ConfigError(_unwritable(runs_dir, f"{existing} is a file, not a folder"))
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(runs_dir)
        fd, probe = tempfile.mkstemp(prefix=".rltrain-probe-", dir=existing)
        try:
            os.write(fd, b"\0" * 4096)
            os.fsync(fd)
        finally:
            os.close(fd)
            os.unlink(probe)
        if _lacks_inodes(existing):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        what = " for further files (inodes)" if error.errno == errno.ENOSPC and _lacks_inodes(existing) else ""
        raise ConfigError(_unwritable(runs_dir, f"{existing}: {error.strerror}{what}")) from error


def _lacks_inodes(folder: Path) -> bool:
    """Whether the disk has not even room for the files that every run makes; some file systems count none."""
    disk = os.statvfs(folder)
    return 0 < disk.f_files and disk.f_favail < NUM_FILES


def _make_unique(runs_dir: Path, name: str) -> Path:
    number = 1
    while True:
        path = runs_dir / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            number += 1


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders that this process made, innermost first, as far as nobody put something in."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _lock(path: Path) -> int:
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take_lock(fd)
        os.ftruncate(fd, 0)
        os.write(fd, str(os.getpid()).encode())
        return fd
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
        os.close(fd)
        raise ConfigError(
            f"the run {path} is open in another process, pid {owner}. Wait for it or stop it; two would overwrite "
            "each other's checkpoints."
        ) from None
    except OSError:
        os.close(fd)
        raise


def _take_lock(fd: int) -> None:
    """Take the lock; tried for 50 ms, as one who lists the runs holds it for a few microseconds."""
    for _ in range(5):
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_atomically(path: Path, text: str) -> None:
    """Write a small file so that a reader, or a crash, sees the old content or the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text if text.endswith("\n") else text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError(_unwritable(path.parent, f"{path.name}: {error.strerror}")) from error


def _to_json(content: dict[str, Any]) -> str:
    """Write JSON that any tool reads: numbers that are not finite become null."""
    try:
        return json.dumps(content, indent=2, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(content), parse_constant=lambda _: None), indent=2)


def _unwritable(path: Path, reason: str) -> str:
    return f"run.dir = {str(path)!r} cannot be written: {reason}. Use a folder you may write to, with free space."
