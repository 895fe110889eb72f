"""Measure what prioritized replay is worth where rare transitions matter: env steps until a chain is walked to its end.

    python tools/bench_priorities.py [--seeds 5] [--length 10] [--json FILE]

Trains `configs/chain.toml` with prioritized and with uniform replay, alternately, and prints for each the env steps
at which the mean return of the last 100 episodes reached 0.5: median and (lowest to highest). A run that does not get
there counts as its whole length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def env_steps_to_solve(seed: int, length: int, prioritized: bool) -> tuple[int, bool]:
    """Train once; return the env steps it took, and whether the goal was reached."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = str(prioritized).lower()
        settings = [f"run.dir={folder}", f"env.kwargs.length={length}", f"replay.prioritized={wanted}"]
        sets = [part for setting in settings for part in ("--set", setting)]
        command = [
            sys.executable, "-m", "rltrain", "run", str(ROOT / "configs/chain.toml"), "--no-dashboard",
            "--seed", str(seed), *sets,
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(next(Path(folder).glob("*/summary.json")).read_text())
    return summary["env_steps"], summary["reason"] == "target"


def main() -> None:
    """Run both sides for each seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--length", type=int, default=10, help="places in the chain")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    found: dict[str, list[tuple[int, bool]]] = {"prioritized": [], "uniform": []}
    for seed in range(1, options.seeds + 1):
        for name, results in found.items():
            results.append(env_steps_to_solve(seed, options.length, name == "prioritized"))
            steps, is_solved = results[-1]
            print(f"seed {seed}  {name:12} {steps:>9,} env steps{'' if is_solved else '  not solved'}", flush=True)
    for name, results in found.items():
        numbers = [number for number, _ in results]
        num_solved = sum(is_solved for _, is_solved in results)
        print(
            f"{name:12} {statistics.median(numbers):>9,.0f} ({min(numbers):,} to {max(numbers):,}), "
            f"{num_solved} of {len(numbers)} solved"
        )
    ratio = statistics.median(s for s, _ in found["uniform"]) / statistics.median(s for s, _ in found["prioritized"])
    print(f"uniform needs {ratio:.2f} x the env steps of prioritized (medians)")
    if options.json:
        options.json.write_text(json.dumps({"length": options.length, **found}, indent=2))


if __name__ == "__main__":
    main()
