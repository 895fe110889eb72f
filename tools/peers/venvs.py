"""One virtual environment for each peer, made with pip and kept. What does not install is named, not fatal.

No pip here installs another torch than rltrain's: `tools/constraints.txt` pins it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
_RECORD = "installed.json"


class InstallError(Exception):
    """A peer could not be installed; the message is pip's last line."""


@dataclass(frozen=True)
class Way:
    """A way to install a peer.

    Args:
        calls: arguments of `pip install`, one call after the other.
        only_torch: whether of the constraints only torch's holds: the peer needs other versions of the rest.
        environment: variables, name and value, that its build asks for.
    """

    calls: tuple[tuple[str, ...], ...]
    only_torch: bool = False
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Venv:
    """An installed peer.

    Args:
        python: its interpreter.
        versions: distribution -> version.
        failed: why the ways that were tried first did not work.
    """

    python: Path
    versions: dict[str, str]
    failed: tuple[str, ...] = ()


def constraints(text: str, only_torch: bool) -> str:
    """Return the lines of the constraints that hold."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(line for line in lines if not only_torch or line.startswith("torch==")) + "\n"


def last_line(text: str) -> str:
    """Return what a failed command said last: the last error that it names, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|Exception|ERROR):? ", line)]
    return ([*lines, *errors] or ["nothing was said"])[-1][:300]


def install(folder: Path, ways: tuple[Way, ...], limit_s: float, say: Callable[[str], None]) -> Venv:
    """Return the peer's environment, made where it is not there yet.

    Args:
        folder: of this environment.
        ways: tried in order until one works.
        limit_s: for each way.
        say: told what is being done.

    Raises:
        InstallError: none worked; that is remembered too, in the folder beside the environment.
    """
    record, wanted = folder / _RECORD, repr((sys.version_info[:3], ways))
    known = json.loads(record.read_text()) if record.is_file() else {}
    if known.get("ways") != wanted:
        known = _make(folder, ways, limit_s, say) | {"ways": wanted}
        record.write_text(json.dumps(known, indent=1))
    if not known["is_installed"]:
        raise InstallError("; ".join(known["failed"]) + f" (remembered in {record}; remove it to try again)")
    return Venv(folder / "bin/python", known["versions"], tuple(known["failed"]))


def _make(folder: Path, ways: tuple[Way, ...], limit_s: float, say: Callable[[str], None]) -> dict[str, object]:
    failed: list[str] = []
    python = folder / "bin/python"
    for way in ways:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        try:
            _pip(python, way, limit_s, say)
        except InstallError as error:
            failed.append(str(error))
            continue
        answer = _output([str(python), "-m", "pip", "list", "--format=json"], 120)
        versions = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(answer.stdout)}
        return {"is_installed": True, "versions": versions, "failed": failed}
    return {"is_installed": False, "failed": failed}


def _pip(python: Path, way: Way, limit_s: float, say: Callable[[str], None]) -> None:
    """Install; raises `InstallError`."""
    end_by = time.monotonic() + limit_s
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as pins:
        pins.write(constraints(CONSTRAINTS.read_text(), way.only_torch))
        pins.flush()
        for call in way.calls:
            what = " ".join(call)
            say(f"pip install {what}")
            command = [str(python), "-m", "pip", "install", "--no-input", "-c", pins.name, *call]
            try:
                done = _output(command, max(1.0, end_by - time.monotonic()), dict(way.environment))
            except subprocess.TimeoutExpired as error:
                raise InstallError(f"pip install {what}: not done after {limit_s:g} s") from error
            if done.returncode:
                raise InstallError(f"pip install {what}: {last_line(done.stdout + done.stderr)}")


def _output(
    command: list[str], limit_s: float, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
