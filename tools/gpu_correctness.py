"""The part of `tools/gpu_check.py` that checks: the tests marked `gpu`, file after file, within the time left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAST_FILES = ("test_prefetch_device.py", "test_run_device.py")
"""Those that take longest."""
_SAYS_GPU = re.compile(r"^(from tests\.devices import|@pytest\.mark\.gpu\b)", re.MULTILINE)
_LEAST_S = 15.0
"""With less time left a file is not begun."""
_UNWIND_S = 20.0
_SHOWN_LINES = 4


@dataclass
class Check:
    """One check and how it went.

    Args:
        name: what was checked.
        is_good: whether all of it held.
        num_passed: tests that passed.
        failures: one for each that did not, with the reason.
        seconds: that it took.
    """

    name: str
    is_good: bool
    num_passed: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def files_with_gpu_tests(folder: Path = ROOT / "tests") -> list[Path]:
    """Return the test files that have tests for a device, the quick ones first."""
    files = [path for path in folder.rglob("test_*.py") if _SAYS_GPU.search(path.read_text())]
    return sorted(files, key=lambda path: (path.name in LAST_FILES and 1 + LAST_FILES.index(path.name), path))


def check_file(path: Path, left_s: float) -> Check | None:
    """Run a file's tests marked `gpu`; None where no time is left for it."""
    if left_s < _LEAST_S:
        return None
    name = str(path.relative_to(ROOT))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rltrain-gpu-check-") as folder:
        result = Path(folder) / "result.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junit-xml={result}", str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said, _ = process.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            _interrupt(process)
            return Check(name, False, failures=[f"not done within the {left_s:.0f} s that were left"], seconds=left_s)
        found = result.read_text() if result.is_file() else None
    check = judged(name, process.returncode, said, found)
    check.seconds = time.monotonic() - began
    return check


def _interrupt(process: subprocess.Popen[str]) -> None:
    """End a pytest as Ctrl-C does, so that it ends what its tests have started."""
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_UNWIND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def judged(name: str, code: int, said: str, found: str | None) -> Check:
    """Return what came of a file's tests.

    Args:
        name: of the file.
        code: pytest's exit code.
        said: what it printed.
        found: its JUnit XML, None where it wrote none.
    """
    if found is None:
        return Check(name, False, failures=[f"pytest ended with {code}: {_end_of(said)}"])
    passed, failures = results(found)
    if not failures and code:
        failures = [f"pytest ended with {code}: {_end_of(said)}"]
    if not failures and not passed:
        failures = ["no test ran: all were skipped or none is marked gpu"]
    return Check(name, not failures, passed, failures)


def results(found: str) -> tuple[int, list[str]]:
    """Return how many tests of a JUnit XML passed, and `name: reason` of each that failed; skipped ones are neither."""
    passed, failures = 0, []
    for case in ElementTree.fromstring(found).iter("testcase"):
        wrong = next((part for part in case if part.tag in ("failure", "error")), None)
        if wrong is not None:
            lines = (wrong.get("message") or "").strip().splitlines()
            failures.append(f"{case.get('name')}: {lines[0] if lines else wrong.tag}")
        elif all(part.tag != "skipped" for part in case):
            passed += 1
    return passed, failures


def _end_of(said: str) -> str:
    return " / ".join(said.strip().splitlines()[-_SHOWN_LINES:])
