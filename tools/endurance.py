"""Train CartPole at full speed for minutes and see whether any process grows.

    python tools/endurance.py [--minutes 20] [--set section.key=value ...] [--json FILE]

Every five seconds it looks at the resident memory, the descriptors and the threads of every process of the run. What
counts is the growth from the second minute (median) to the last one: at most 2 % of resident memory in each process,
no descriptor, no thread; and nothing may be left in /dev/shm. Exit code 0 when all of it holds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
LOOK_S = 5.0
LARGEST_GROWTH = 0.02
OPTIONS = ["run.total_env_steps=1_000_000_000_000", "run.target_return=none", "algo.ppo.epochs=1",
           "actors.envs_per_group=1024", "algo.ppo.num_minibatches=8"]  # fmt: skip
"""Those of the throughput bar: the most fragments, batches and publications each second."""


def look(supervisor: psutil.Process, seen: dict[str, list[tuple[float, int, int]]]) -> None:
    """Add (resident bytes, descriptors, threads) of each process to `seen`, by its name."""
    try:
        processes = [supervisor, *supervisor.children(recursive=True)]
    except psutil.Error:
        return
    for process in processes:
        try:
            name = "supervisor" if process == supervisor else process.name().removeprefix("rl:")
            seen[name].append((process.memory_info().rss, process.num_fds(), process.num_threads()))
        except psutil.Error:
            continue


def growth(values: list[float], per_minute: int) -> tuple[float, float]:
    """Return the medians of the second minute and of the last one."""
    return statistics.median(values[per_minute : 2 * per_minute]), statistics.median(values[-per_minute:])


def main() -> int:
    """Run, look, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="at least 3")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.minutes < 3:
        parser.error("--minutes must be at least 3: the first is not looked at, the second and the last are compared")
    shm_before = set(os.listdir("/dev/shm"))
    seen: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        sets = [part for o in [f"run.dir={folder}", *OPTIONS, *args.overrides] for part in ("--set", o)]
        command = [sys.executable, "-m", "rltrain", "run", str(ROOT / "configs/cartpole.toml"), "--no-dashboard", *sets]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        supervisor, began = psutil.Process(process.pid), time.monotonic()
        while (now := time.monotonic() - began) < args.minutes * 60 and process.poll() is None:
            look(supervisor, seen)
            print(f"\r{now / 60:5.1f} of {args.minutes:g} min", end="", file=sys.stderr, flush=True)
            time.sleep(LOOK_S)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        summary = json.loads(next(Path(folder).glob("*/summary.json")).read_text())
    left = sorted(set(os.listdir("/dev/shm")) - shm_before)
    print(f"\n{summary['env_steps']:,} env steps, {summary['updates']:,} updates, exit code {code}, "
          f"left in /dev/shm: {', '.join(left) or 'nothing'}")  # fmt: skip
    print(f"{'process':<16}{'resident MiB':>22}{'growth':>9}{'descriptors':>14}{'threads':>10}")
    per_minute, judged = int(60 / LOOK_S), set[str]()
    holds = code == 130 and not left
    for name, looks in seen.items():
        if len(looks) < 2 * per_minute:
            continue  # the interpreter of the zygotes before they have their name
        judged.add(name)
        (rss, rss_end), (fds, fds_end), (threads, threads_end) = (
            growth([look[i] for look in looks], per_minute) for i in range(3)
        )
        share = rss_end / rss - 1
        holds &= share < LARGEST_GROWTH and fds_end <= fds and threads_end <= threads
        print(f"{name:<16}{rss / 2**20:>10.1f} -> {rss_end / 2**20:>8.1f}{share:>+9.2%}"
              f"{fds:>8.0f} -> {fds_end:.0f}{threads:>6.0f} -> {threads_end:.0f}")  # fmt: skip
    if missing := {"supervisor", "learner", "inference", "actor-0"} - judged:
        holds = False
        print(f"not seen for two minutes: {', '.join(sorted(missing))}")
    if args.json:
        args.json.write_text(json.dumps({"minutes": args.minutes, "holds": holds, "seen": seen}, indent=1))
    print("all of it holds" if holds else "NOT all of it holds")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
