"""Measure what prioritized replay is worth where rare transitions matter: env steps until a chain is walked to its end.

    python tools/bench_priorities.py [--seeds 5] [--length 13] [--json FILE]

Trains `configs/chain.toml` with prioritized and with uniform replay, alternately, from the same random actions, and
prints for each how many env steps after the first reward was collected the greedy policy walked the whole chain, in
this and in every later evaluation: median and (lowest to highest). A run that does not get there counts as its whole
length. Seeds whose first network walks it by chance, before any reward, say nothing and do not count.
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


def env_steps_to_solve(seed: int, length: int, prioritized: bool) -> tuple[int, int, bool]:
    """Train once.

    Returns:
        (env steps to the first reward, env steps from there to the goal, whether it was reached).
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = str(prioritized).lower()
        settings = [f"run.dir={folder}", f"env.kwargs.length={length}", f"replay.prioritized={wanted}"]
        sets = [part for setting in settings for part in ("--set", setting)]
        command = [
            sys.executable, "-m", "rltrain", "run", str(ROOT / "configs/chain.toml"), "--no-dashboard",
            "--seed", str(seed), *sets,
        ]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        collected, evaluated = (curve(Path(folder), name) for name in ("rollout/return_mean", "eval/return_mean"))
    first = next(step for step, value in collected if value > 0)
    unsolved = [step for step, value in evaluated if value < 1]
    later = [step for step, _ in evaluated if step > max(unsolved, default=0)]
    return first, max(0, (later[0] if later else evaluated[-1][0]) - first), bool(later)


def curve(runs: Path, name: str) -> list[tuple[int, float]]:
    """Read (env steps, value) of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next(runs.glob("*/tensorboard"))
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload().Scalars(name)
    return [(point.step, point.value) for point in found]


def main() -> None:
    """Run both sides for each seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--length", type=int, default=13, help="places in the chain")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    found: dict[str, list[tuple[int, int, bool]]] = {"prioritized": [], "uniform": []}
    seed = 0
    while len(found["uniform"]) < options.seeds:
        seed += 1
        pair = {name: env_steps_to_solve(seed, options.length, name == "prioritized") for name in found}
        if not all(steps for _, steps, _ in pair.values()):
            print(f"seed {seed}  walked by chance before the first reward", flush=True)
            continue
        for name, result in pair.items():
            found[name].append(result)
            first, steps, is_solved = result
            more = "" if is_solved else "  not solved"
            print(f"seed {seed}  {name:12} first reward at {first:>7,}, then {steps:>7,} env steps{more}", flush=True)
    for name, results in found.items():
        numbers = [number for _, number, _ in results]
        num_solved = sum(is_solved for *_, is_solved in results)
        print(
            f"{name:12} {statistics.median(numbers):>9,.0f} ({min(numbers):,} to {max(numbers):,}), "
            f"{num_solved} of {len(numbers)} solved"
        )
    uniform, prioritized = (statistics.median(n for _, n, _ in found[name]) for name in ("uniform", "prioritized"))
    print(f"uniform needs {uniform / prioritized:.2f} x the env steps of prioritized (medians)")
    if options.json:
        options.json.write_text(json.dumps({"length": options.length, **found}, indent=2))


if __name__ == "__main__":
    main()
