"""What every benchmark record carries: the machine, the versions, the commit and the command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil

from rltrain.config.machine import usable_cores

PACKAGE = Path(__file__).resolve().parents[1]
GIT_TIMEOUT_S = 10


def record(packages: tuple[str, ...]) -> dict[str, object]:
    """Describe this run of a bench, JSON-able.

    Args:
        packages: distributions whose versions matter; those that are not installed are left out.
    """
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": shlex.join(["rltrain", *sys.argv[1:]]),
        "commit": commit(),
        "cpu": _cpu(),
        "usable_cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **versions(("rltrain", "numpy", *packages))},
    }


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return distribution -> version of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the source tree, with `+changes` where files differ from it; None outside of one."""
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # installed: a repository around it is another project's
    head, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "-uno", ".")
    return head if not changes else f"{head}+changes"


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
