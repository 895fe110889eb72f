"""The runs of a folder: finding one, listing all, with what each says of itself."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import re
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.errors import ConfigError

STATE, SUMMARY, LOCK = "state.json", "summary.json", "lock"


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs; None where the run did not say.

    `env_steps` of a run without summary are those of its last checkpoint.
    """

    name: str
    path: Path
    state: str
    env_steps: int | None
    return_mean: float | None
    duration_s: float | None
    started: float


def find_run(path_or_name: str | Path, runs_dir: Path) -> Path:
    """Return the folder of a run.

    Args:
        path_or_name: its folder; the folder's name; `run.name`, which stands for the newest run of that name; or
            `latest`, the newest run that has a checkpoint.
        runs_dir: `run.dir`.

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
    if named := [run.path for run in runs if run.name.removesuffix(_time_of(run.name)) == str(path_or_name)]:
        return named[0]
    if Path(path_or_name).is_file():
        raise ConfigError(f"{str(path_or_name)!r} is a file. Accepted: a run's folder, its name, or `latest`.")
    near = difflib.get_close_matches(str(path_or_name), [run.name for run in runs], n=3, cutoff=0.3)
    near = near or [run.name for run in runs[:3]]
    known = f"Nearest: {', '.join(near)}; or `latest`." if near else "There is no run in it."
    raise ConfigError(f"{str(path_or_name)!r} is neither a run folder nor the name of a run in {runs_dir}. {known}")


def _time_of(folder: str) -> str:
    """Return the `-<time>` at the end of a run folder's name, empty where there is none."""
    found = re.search(r"-\d{8}-\d{6}(-\d+)?$", folder)
    return found[0] if found else ""


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
    is_running = _is_locked(path)
    env_steps = _number(summary.get("env_steps")) if summary else checkpointed(path)[0]
    return RunInfo(
        name=path.name,
        path=path,
        state="running" if is_running else how or ("killed" if not summary else "ended"),
        env_steps=None if env_steps is None else int(env_steps),
        return_mean=_number(summary.get("return_mean")),
        duration_s=trained_s(path, is_running),
        started=path.stat().st_mtime if started is None else started,
    )


def trained_s(path: Path, is_running: bool = False) -> float | None:
    """Return the seconds that a run has taken, resumed parts included; a part that was killed up to its checkpoint.

    Args:
        path: the run folder.
        is_running: whether its last part goes on.

    Returns:
        None where the run did not say.
    """
    state, summary = _read_json(path / STATE), _read_json(path / SUMMARY)
    started, last = _number(state.get("started")), _number(summary.get("duration_s"))
    if last is None and started is not None:
        until = time.time() if is_running else checkpointed(path)[1]
        last = None if until is None else max(0.0, until - started)
    return None if last is None else (_number(state.get("earlier_s")) or 0.0) + last


def checkpointed(path: Path) -> tuple[int | None, float | None]:
    """Return the env steps of the furthest checkpoint, and when it was written, in seconds since 1970.

    Files that are empty or cut short do not count; a whole look at each would take a second and more.
    """
    found = []
    for file in path.glob("checkpoints/checkpoint-*.pt"):
        with contextlib.suppress(OSError, ValueError):
            if zipfile.is_zipfile(file):  # its directory is at the end
                found.append((int(file.stem.removeprefix("checkpoint-")), file.stat().st_mtime))
    return max(found, default=(None, None))


def newest_checkpoint(path: Path) -> str | None:
    """Return the checkpoint of a run folder that was written last, None where none is there."""
    found = []
    for file in path.glob("checkpoints/checkpoint-*.pt"):
        with contextlib.suppress(OSError):  # removed meanwhile
            found.append((file.stat().st_mtime_ns, str(file)))
    return max(found)[1] if found else None


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
