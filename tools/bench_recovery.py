"""Measure what the death of one of four actors costs: throughput in the seconds after it, against before.

    python tools/bench_recovery.py [--repeats 3] [--schedule overlap] [--json FILE]

Trains CartPole on its own vector env at full speed, kills each of the four actors once with SIGKILL, eight seconds
apart, and reads the learned env steps over wall time from the curves. Prints medians and (lowest to highest).
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
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
NUM_ACTORS = 4
SETTLE_S, APART_S, BEFORE_S = 6.0, 8.0, 4.0
OPTIONS = [
    "run.total_env_steps=1_000_000_000", "run.target_return=none", "algo.ppo.epochs=1", "log.every_env_steps=1",
    f"actors.num_actors={NUM_ACTORS}", "actors.envs_per_group=256", "algo.ppo.num_minibatches=8",
]  # fmt: skip


def run(schedule: str) -> list[tuple[float, list[float]]]:
    """Train and kill; returns for each death the rate before it, and those of the five seconds after it."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"run.dir={folder}", f"pipeline.schedule={schedule}", *OPTIONS]
        if schedule == "async":
            overrides += ["algo.name=appo"]
        sets = [part for override in overrides for part in ("--set", override)]
        command = [sys.executable, "-m", "rltrain", "run", str(ROOT / "configs/cartpole.toml"), "--no-dashboard", *sets]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        deaths = []
        try:
            time.sleep(SETTLE_S)
            for index in range(NUM_ACTORS):
                time.sleep(APART_S)
                children = {child.name(): child for child in psutil.Process(process.pid).children(recursive=True)}
                deaths.append(time.time())
                children[f"rl:actor-{index}"].kill()
            time.sleep(APART_S)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
        walls, steps = learned(Path(folder))
    return [
        (rate(walls, steps, at - BEFORE_S, at), [rate(walls, steps, at + s, at + s + 1) for s in range(5)])
        for at in deaths
    ]


def learned(runs: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read when (s) how many env steps had been learned."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next(runs.glob("*/tensorboard"))
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload().Scalars("rollout/episodes")
    return np.array([point.wall_time for point in found]), np.array([point.step for point in found], float)


def rate(walls: np.ndarray, steps: np.ndarray, start: float, end: float) -> float:
    """Return env steps learned per second between two moments."""
    first, last = np.interp([start, end], walls, steps)
    return float((last - first) / (end - start))


def main() -> None:
    """Repeat, and print each second's share of the rate before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--schedule", choices=["sync", "overlap", "async"], default="overlap")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    deaths = []
    for repeat in range(args.repeats):
        print(f"repeat {repeat + 1}/{args.repeats}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        deaths += run(args.schedule)
    before = [rate for rate, _ in deaths]
    print(f"{len(deaths)} deaths, {args.schedule}: {statistics.median(before):,.0f} env steps/s before a death")
    for second in range(5):
        shares = [after[second] / rate for rate, after in deaths]
        spread = f"({min(shares):.1%} to {max(shares):.1%})"
        print(f"second {second + 1} after it: {statistics.median(shares):6.1%}   {spread}")
    if args.json:
        args.json.write_text(json.dumps({"schedule": args.schedule, "deaths": deaths}, indent=1))


if __name__ == "__main__":
    main()
