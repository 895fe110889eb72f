"""Train for minutes while faults strike, then check that nothing was lost, torn, learned twice or left behind.

    python tools/chaos [--minutes 10] [--every 5] [--seed 0] [--json FILE] [--keep DIR]

Faults, one at a time at random distances: kill -9 of any process, processes that stand still for a second or for good,
envs that raise, exit, crash, hang or are slow, checkpoints cut in half, a full disk (where one can be mounted).
Every observation carries a mark by which the learner's network checks the rows of every batch; see `marked.py`.
Exit code 0 when every check holds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from random import Random

import psutil
from faults import Faults

HERE = Path(__file__).resolve().parent
TARGET = 475.0
DISK_MIB = 48
CALIBRATION_STEPS = 300_000
SHARE_LEARNED = 0.75
"""Part of the undisturbed speed that a run under faults is expected to keep: what it learned since its last checkpoint
is lost at each death of the learner, and booting takes seconds."""
LIMIT_FACTOR = 3.0
MARK = "RLTRAIN_CHAOS_MARK"


def command(folder: Path, env_steps: int, *more: str) -> list[str]:
    """Return the command line of a run below `folder`."""
    sets = [f"run.dir={folder}", f"run.total_env_steps={env_steps}", *more]
    return [sys.executable, "-m", "rltrain", "run", str(HERE / "cartpole.toml"), "--no-dashboard",
            *(part for override in sets for part in ("--set", override))]  # fmt: skip


def environment(tokens: Path, mark: str = "") -> dict[str, str]:
    """Return the variables that a run gets."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "RLTRAIN_CHAOS": str(tokens), MARK: mark}


def undisturbed_rate(scratch: Path) -> float:
    """Return env steps learned per second without faults."""
    folder, tokens = scratch / "calibration", scratch / "no-tokens"
    tokens.mkdir()
    subprocess.run(command(folder, CALIBRATION_STEPS), env=environment(tokens), check=True, stdout=subprocess.DEVNULL)
    summary = json.loads(next(folder.glob("*/summary.json")).read_text())
    if (tokens / "violations.txt").exists():
        sys.exit("violations without a fault:\n" + (tokens / "violations.txt").read_text())
    return summary["env_steps"] / (summary["duration_s"] - summary["first_update_s"])


def mounted(folder: Path) -> bool:
    """Mount a small disk at `folder`; False where that is not allowed."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(words, capture_output=True).returncode == 0


class ChaosRun:
    """One run under faults.

    Args:
        scratch: a folder of its own.
        args: the command line's.
    """

    def __init__(self, scratch: Path, args: argparse.Namespace):
        self.args, self.random = args, Random(args.seed)
        self.disk, self.tokens = scratch / "disk", scratch / "tokens"
        self.tokens.mkdir()
        self.output = scratch / "output.txt"
        self.mark = uuid.uuid4().hex
        self.struck: Counter[str] = Counter()
        self.usage: list[tuple[int, int, int]] = []
        """Descriptors, threads and resident bytes of the supervisor, at each fault."""
        self.has_own_disk = mounted(self.disk)

    def run(self, env_steps: int) -> int:
        """Train under faults until the run ends; returns its exit code."""
        shm_before = set(os.listdir("/dev/shm"))
        limit = time.monotonic() + self.args.minutes * 60 * LIMIT_FACTOR
        with open(self.output, "w") as output:
            process = subprocess.Popen(
                command(self.disk, env_steps), env=environment(self.tokens, self.mark), stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        faults = Faults(process.pid, self.disk, self.tokens, self.random, self.has_own_disk)
        began = time.monotonic()
        self._pause(process, 10)
        while process.poll() is None and time.monotonic() < limit:
            try:
                own = faults.supervisor
                self.usage.append((own.num_fds(), own.num_threads(), own.memory_info().rss))
                kind, target = faults.strike()
            except psutil.NoSuchProcess:
                break
            if target is not None:
                self.struck[kind] += 1
                print(f"{time.monotonic() - began:7.1f} s  {kind:<16} {target}", flush=True)
            self._pause(process, self.random.expovariate(1 / self.args.every))
        if process.poll() is None:
            print("the run did not come to its end in time", file=sys.stderr)
            process.kill()
        self.minutes = (time.monotonic() - began) / 60
        code = process.wait()
        self.left_in_shm = sorted(set(os.listdir("/dev/shm")) - shm_before)
        return code

    @staticmethod
    def _pause(process: subprocess.Popen, seconds: float) -> None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def survivors(self) -> list[str]:
        """Return the processes of the run that outlive it."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(f"{process.name()} (pid {process.pid})")
            except psutil.Error:
                continue
        return found

    def checks(self, code: int, env_steps: int) -> dict[str, tuple[bool, str]]:
        """Return what has to hold: name -> (whether it does, what was seen)."""
        time.sleep(1)
        folder = next(self.disk.glob("chaos-*"))
        summary_file, violations = folder / "summary.json", self.tokens / "violations.txt"
        summary = json.loads(summary_file.read_text()) if summary_file.exists() else {}
        rows = sum(int(file.read_text()) for file in self.tokens.glob("rows-*"))
        told = violations.read_text().splitlines() if violations.exists() else []
        folds, last = backward_steps(folder)
        left = self.survivors()
        temporary = [p.name for p in folder.rglob("*") if "tmp" in p.name] + self.left_in_shm
        best, at_end = max(last, default=0.0), summary.get("return_mean", 0)
        return {
            "exit code is 0": (code == 0, str(code)),
            "all env steps were learned": (summary.get("env_steps", 0) >= env_steps, f"{summary.get('env_steps')}"),
            f"return reached {TARGET:g}": (best >= TARGET, f"{best:.1f}, at the end {at_end:.1f}"),
            "rows torn, lost or learned twice: none": (rows > 0 and not told, f"{len(told)} of {rows:,} rows' batches"),
            "curves never go back": (not folds, ", ".join(folds) or "none does"),
            "processes left: none": (not left, ", ".join(left) or "none"),
            "files left: none": (not temporary, ", ".join(temporary) or "none"),
            "supervisor's descriptors do not grow": self._growth(0, 4),
            "supervisor's threads do not grow": self._growth(1, 2),
        }

    def _growth(self, column: int, most: int) -> tuple[bool, str]:
        """The median of the last tenth of the looks against that of the second tenth."""
        values = [usage[column] for usage in self.usage]
        tenth = max(1, len(values) // 10)
        parts = (values[tenth : 2 * tenth] or values[:1], values[-tenth:])
        early, late = (sorted(part)[len(part) // 2] for part in parts)
        return late - early <= most, f"{early} -> {late}"

    def close(self) -> None:
        """Give the disk back."""
        if self.has_own_disk:
            subprocess.run(["umount", str(self.disk)], check=False)


def backward_steps(folder: Path) -> tuple[list[str], list[float]]:
    """Return the curves whose axis goes back, and the values of the return's curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    folds = []
    for tag in found.Tags()["scalars"]:
        points = found.Scalars(tag)
        axis = [point.step for point in points]
        if axis != sorted(axis):
            folds.append(tag)
        if tag in ("throughput/policy_version", "throughput/updates"):
            values = [point.value for point in points]
            folds += [f"values of {tag}"] * (values != sorted(values))
    returns = found.Scalars("rollout/return_mean") if "rollout/return_mean" in found.Tags()["scalars"] else []
    return folds, [point.value for point in returns]


def main() -> int:
    """Calibrate, run, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long the run should take")
    parser.add_argument("--every", type=float, default=5, help="mean distance between faults, seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of faults")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--keep", type=Path, help="copy the run folder and the output here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rate = undisturbed_rate(scratch)
        env_steps = int(rate * SHARE_LEARNED * args.minutes * 60)
        print(f"{rate:,.0f} env steps/s without faults; {env_steps:,} under faults", flush=True)
        chaos = ChaosRun(scratch, args)
        try:
            code = chaos.run(env_steps)
            checks = chaos.checks(code, env_steps)
        finally:
            if args.keep:
                shutil.copytree(chaos.disk, args.keep / "runs", dirs_exist_ok=True)
                shutil.copy(chaos.output, args.keep)
            chaos.close()
        if code != 0:
            print(chaos.output.read_text()[-3000:])
    print(f"\n{sum(chaos.struck.values())} faults in {chaos.minutes:.1f} min, seed {args.seed}:")
    for kind, number in sorted(chaos.struck.items()):
        print(f"  {kind:<18} {number}")
    for name, (holds, seen) in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'}  {name:<42} {seen}")
    if args.json:
        result = {
            "minutes": chaos.minutes, "seed": args.seed, "faults": chaos.struck, "env_steps": env_steps,
            "checks": {name: {"holds": holds, "seen": seen} for name, (holds, seen) in checks.items()},
        }  # fmt: skip
        args.json.write_text(json.dumps(result, indent=1))
    return 0 if all(holds for holds, _ in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
