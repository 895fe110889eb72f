"""The folder of a run: making it, locking it, finding it again, listing all.

Owns: `<run.dir>/<name>-<time>/` with `config.toml logs/ tensorboard/ checkpoints/ state.json summary.json lock`.
Written by: the supervisor; `checkpoints/` by the learner.
Read by: `rltrain runs`, `eval`, `board`, and a resumed run.
Blocks on: the disk. Unblocked by: nothing.
If the process dies: the kernel drops its lock; a run without lock and summary counts as killed.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.errors import ConfigError

CONFIG, STATE, SUMMARY, LOCK = "config.toml", "state.json", "summary.json", "lock"
PARTS = ("logs", "tensorboard", "checkpoints")


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs; None where the run did not say."""

    name: str
    path: Path
    state: str
    env_steps: int | None
    return_mean: float | None
    duration_s: float | None
    started: float


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
            return cls(path, _lock(path))
        except OSError as error:
            raise ConfigError(_unwritable(path, error.strerror or str(error))) from error

    def write_config(self, text: str) -> None:
        """Write the resolved configuration, `config.toml`.

        Raises:
            ConfigError: as of the other two: the disk is full or gone; what was there before is untouched.
        """
        _write_atomically(self.path / CONFIG, text)

    def write_state(self, state: dict[str, Any]) -> None:
        """Write what is known at the start; `pid` and `started` (seconds since 1970) are added.

        A summary of an earlier part of a resumed run is removed, as it no longer holds.
        """
        _write_atomically(self.path / STATE, _to_json({"pid": os.getpid(), "started": time.time(), **state}))
        (self.path / SUMMARY).unlink(missing_ok=True)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write how the run ended, `summary.json`.

        `list_runs` reads `state`, `env_steps`, `return_mean`, `duration_s`.
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
    except OSError as error:
        raise ConfigError(_unwritable(runs_dir, f"{existing}: {error.strerror}")) from error


def find_run(path_or_name: str | Path, runs_dir: Path) -> Path:
    """Return the folder of a run named by path, by name, or as `latest`: the newest that has a checkpoint.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    runs_dir = Path(runs_dir).absolute()
    runs = list_runs(runs_dir)
    if str(path_or_name) == "latest":
        with_checkpoint = [run.path for run in runs if any((run.path / "checkpoints").glob("checkpoint-*.pt"))]
        if runs:
            return with_checkpoint[0] if with_checkpoint else runs[0].path
        raise ConfigError(f"there is no run in {runs_dir} (run.dir). Start one with `rltrain run CONFIG`.")
    for path in (Path(path_or_name).absolute(), runs_dir / path_or_name):
        if _is_run(path):
            return path
    near = difflib.get_close_matches(str(path_or_name), [run.name for run in runs], n=3, cutoff=0.4)
    near = near or [run.name for run in runs[:3]]
    known = f"Nearest: {', '.join(near)}; or `latest`." if near else "There is no run in it."
    raise ConfigError(f"{str(path_or_name)!r} is neither a run folder nor the name of a run in {runs_dir}. {known}")


def list_runs(runs_dir: Path) -> list[RunInfo]:
    """Return the runs of a folder, newest first; other folders and damaged files in it are passed over."""
    try:
        found = [_info(path) for path in Path(runs_dir).absolute().iterdir() if _is_run(path)]
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return []
    return sorted(found, key=lambda run: (run.started, run.name), reverse=True)


def _info(path: Path) -> RunInfo:
    state, summary = _read_json(path / STATE), _read_json(path / SUMMARY)
    started = _number(state.get("started"))
    how = summary.get("state") if isinstance(summary.get("state"), str) else None
    if _is_locked(path):
        how = "running"
    env_steps = _number(summary.get("env_steps"))
    return RunInfo(
        name=path.name,
        path=path,
        state=how or ("killed" if not summary else "ended"),
        env_steps=None if env_steps is None else int(env_steps),
        return_mean=_number(summary.get("return_mean")),
        duration_s=_number(summary.get("duration_s")),
        started=path.stat().st_mtime if started is None else started,
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < float("inf") else None


def _is_run(path: Path) -> bool:
    try:
        return (path / LOCK).is_file() and (path / "logs").is_dir()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


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


def _is_locked(path: Path) -> bool:
    """Look without writing: a shared lock is refused exactly while an owner holds the exclusive one."""
    try:
        fd = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


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
