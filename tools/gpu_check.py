#!/usr/bin/env python3
"""Check and measure rltrain on a machine with an NVIDIA GPU, in less than eight minutes.

    python tools/gpu_check.py [--seconds 430] [--json FILE] [--html FILE]

First the tests marked `gpu`: graphs beside eager for every size of batch, bfloat16 beside float32, pinned buffers
under load, updates that wait for nothing, whole runs that learn and repeat bit for bit. Then short runs of CartPole
with 4,096 envs, with a wide network, and of Pong, in every schedule, and `rltrain bench article --quick`. What does not
fit into the time is named. Exit code: 0 when everything held, 1 when a check or a run failed, 2 without a CUDA device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a source tree that is not installed
from rltrain.bench.page import check_available, page_of
from rltrain.bench.record import record
from rltrain.bench.report import Cell, Report, Table, as_json, lines_of
from rltrain.errors import RltrainError
from tools.gpu_correctness import ROOT, Check, check_file, files_with_gpu_tests
from tools.gpu_trials import ARTICLE_S, Trials, article

SECONDS = 430.0
"""With what a bench that is ended takes to do so, less than eight minutes."""
TOLD = ("torch", "nvidia-ml-py", "gymnasium", "ale-py")


class GpuCheck:
    """Everything that is checked and measured, within some seconds.

    Args:
        seconds: for all of it.
        tell: hears of what begins.
        device: the GPU's name.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None], device: str):
        self.device, self.tell = device, tell
        self.seconds = seconds
        self._end_s = time.monotonic() + seconds
        self.checks: list[Check] = []
        self.trials = Trials(self._left_before_article_s)
        self.article_tables: list[Table] = []
        self._failures: list[str] = []
        self._left_out: list[str] = []

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self._end_s - time.monotonic()

    def _left_before_article_s(self) -> float:
        return self.left_s() - ARTICLE_S

    def run(self) -> None:
        """Check, then measure."""
        for path in files_with_gpu_tests():
            self.tell(str(path.relative_to(ROOT)))
            check = check_file(path, self.left_s())
            if check is None:
                self._left_out.append(f"{path.relative_to(ROOT)}: no time was left")
            else:
                self.checks.append(check)
        self.trials.run(self.tell)
        self.tell("rltrain bench article")
        self.article_tables, failed, left_out = article(self.left_s())
        self._failures += [failed] if failed else []
        self._left_out += [left_out] if left_out else []

    @property
    def failures(self) -> list[str]:
        """Everything that did not hold, one text each."""
        of_checks = [f"{check.name}: {text}" for check in self.checks for text in check.failures]
        return of_checks + self.trials.failures + self._failures

    @property
    def left_out(self) -> list[str]:
        """What was neither checked nor measured, and why."""
        return self._left_out + self.trials.left_out

    def report(self, said: dict[str, Any]) -> Report:
        """Return what was found so far; `said` is of `bench.record`."""
        rows: list[tuple[Cell, ...]] = [
            (c.name, "held" if c.is_good else "FAILED", f"{c.num_passed} passed, {len(c.failures)} failed",
             f"{c.seconds:.0f}") for c in self.checks
        ]  # fmt: skip
        checks = Table("Checks", ("tests", "", "of them", "s"), rows)
        return Report(
            title="rltrain on a GPU",
            how=f"{self.device}; one run each, within {self.seconds:.0f} s in all; utilisation is NVML's: that some "
            "kernel was resident, not that the GPU was full",
            record=said,
            tables=[checks, *self.trials.tables(), *self.article_tables],
            charts=self.trials.charts(),
            notes=[*(f"FAILED: {x}" for x in self.failures), *(f"left out: {x}" for x in self.left_out)],
        )


def device_name() -> str | None:
    """Return the name of the first CUDA device, None where there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def refusal(device: str | None, html: Path | None, has_pytest: bool) -> str | None:
    """Return why nothing can be checked here, one sentence and what to do; None where it can."""
    if device is None:
        return "tools/gpu_check.py needs a CUDA device, and torch sees none here. Use a machine with an NVIDIA GPU."
    if not has_pytest:
        return "tools/gpu_check.py runs tests, and pytest is not installed. pip install 'rltrain[test]'."
    if html is not None:
        try:
            check_available()
        except RltrainError as error:
            return str(error)
    return None


def main() -> int:
    """Run everything, print the report, write the files, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it (default: %(default).0f)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every value to this file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page; needs the extra `report`")
    options = parser.parse_args()
    device = device_name()
    problem = refusal(device, options.html, importlib.util.find_spec("pytest") is not None)
    if problem is not None:
        print(problem, file=sys.stderr)
        return 2
    assert device is not None, "else it is refused"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # of runs
    said = record(TOLD) | {"command": shlex.join(["python", "tools/gpu_check.py", *sys.argv[1:]])}
    check = GpuCheck(options.seconds, lambda what: print(what, file=sys.stderr, flush=True), device)
    is_complete = False
    try:
        check.run()
        is_complete = True
    except KeyboardInterrupt:
        pass
    report = check.report(said)
    report.is_complete = is_complete
    print("\n".join(lines_of(report)))
    if options.json is not None:
        whole = {"failed": check.failures, "left_out": check.left_out, **as_json(report)}
        options.json.write_text(json.dumps(whole, indent=1))
    if options.html is not None:
        options.html.write_text(page_of(report))
    return exit_code(check.failures, is_complete)


def exit_code(failures: list[str], is_complete: bool) -> int:
    """Return 130 after Ctrl-C, else 1 where something failed."""
    return 130 if not is_complete else int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
