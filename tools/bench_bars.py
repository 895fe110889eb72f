"""Measure the figures that the README quotes, interleaved with a minimal single-process loop. Use a quiet machine.

    python tools/bench_bars.py [--repeats 3] [--json FILE] [NAME ...]

Names: `threshold` (seconds to CartPole 475, first update, memory), `throughput` (CartPole on its own vector env, one
pass, beside the minimal loop), `single` (the same through single `gym.make` envs), `pong` (decisions per second, one
pass, beside the raw AtariVectorEnv), `interrupt` (seconds from Ctrl-C to the prompt, CartPole at full speed). Without a
name: all of them. Prints medians and the spread (lowest, highest).
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

ROOT = Path(__file__).parent.parent
ONE_PASS = ["algo.ppo.epochs=1", "run.target_return=none"]
THROUGHPUT = [
    *ONE_PASS, "run.total_env_steps=8_000_000", "actors.envs_per_group=1024", "algo.ppo.num_minibatches=8",
]
"""Minibatches of 8,192 rows, as in the minimal loop."""
SINGLE = [*ONE_PASS, "run.total_env_steps=1_500_000", "env.vectorization=single", "actors.envs_per_group=128"]
PONG = [*ONE_PASS, "run.total_env_steps=40_000", "algo.ppo.num_minibatches=4"]


def run(config: str, overrides: list[str], seed: int = 1) -> dict:
    """Run rltrain to its end and return its summary."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [part for override in [f"run.dir={folder}", *overrides] for part in ("--set", override)]
        command = [sys.executable, "-m", "rltrain", "run", config, "--seed", str(seed), "--no-dashboard", *sets]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(next(Path(folder).glob("*/summary.json")).read_text())
    training_s = summary["duration_s"] - summary["first_update_s"]
    summary["learned_per_s"] = summary["env_steps"] / training_s
    return summary


def threshold(figures: dict, repeat: int) -> None:
    """CartPole to 475, one seed per repeat."""
    summary = run("configs/cartpole.toml", [], seed=repeat + 1)
    assert summary["reason"] == "target", summary["reason"]
    figures["CartPole to 475, s from process start"].append(summary["duration_s"])
    figures["first update, s from process start"].append(summary["first_update_s"])
    figures["actor, resident MiB"].append(summary["rss_bytes"]["actor-0"] / 2**20)


def throughput(figures: dict, repeat: int) -> None:
    """One pass on the native vector env, and the minimal loop with one and two threads."""
    figures["native vector env, env steps/s learned"].append(run("configs/cartpole.toml", THROUGHPUT)["learned_per_s"])
    for threads in (1, 2):
        command = [sys.executable, "tools/minimal_ppo.py", "--threads", str(threads), "--seconds", "8"]
        answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        figures[f"minimal loop, {threads} thread{'s' * (threads > 1)}, 1,024 envs, env steps/s"].append(
            json.loads(answer)["env_steps_per_s"]
        )


def single(figures: dict, repeat: int) -> None:
    """One pass through single `gym.make` envs."""
    figures["single envs, env steps/s learned"].append(run("configs/cartpole.toml", SINGLE)["learned_per_s"])


def pong(figures: dict, repeat: int) -> None:
    """Decisions through the pipeline, and of the bare vector env with all cores."""
    figures["Pong, decisions/s learned"].append(run("configs/pong.toml", PONG)["learned_per_s"])
    figures["AtariVectorEnv alone, decisions/s"].append(raw_pong())


def raw_pong(num_envs: int = 16, seconds: float = 6.0) -> float:
    """Step the bare vector env with random actions."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", num_envs=num_envs)
    env.reset(seed=0)
    actions = env.action_space.sample()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        env.step(actions)
        steps += num_envs
    return steps / (time.perf_counter() - began)


def interrupt(figures: dict, repeat: int) -> None:
    """Ctrl-C in a run at full speed, as a terminal sends it; in each repeat at another time after the first update."""
    with tempfile.TemporaryDirectory() as folder:
        endless = ["run.target_return=none", "run.total_env_steps=1_000_000_000", f"run.dir={folder}"]
        sets = [part for override in endless for part in ("--set", override)]
        command = [sys.executable, "-m", "rltrain", "run", "configs/cartpole.toml", "--no-dashboard", *sets]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
        while not any(Path(folder).glob("*/tensorboard/events*")):
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.01)
        time.sleep(1 + 0.3 * repeat)
        pressed = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait()
        figures["Ctrl-C to prompt, checkpoint written, s"].append(time.perf_counter() - pressed)
        assert code == 130, code
        (summary,) = (json.loads(path.read_text()) for path in Path(folder).glob("*/summary.json"))
        assert Path(summary["checkpoint"]).is_file()


BENCHES = {
    "threshold": threshold, "throughput": throughput, "single": single, "pong": pong, "interrupt": interrupt,
}  # fmt: skip


def main() -> None:
    """Run the benches in turn, `repeats` times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], default=[], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures: dict[str, list[float]] = defaultdict(list)
    names = args.names or list(BENCHES)
    for repeat in range(args.repeats):
        for name in names:
            load = os.getloadavg()[0]
            print(f"repeat {repeat + 1}/{args.repeats}: {name}, load {load:.1f}", file=sys.stderr, flush=True)
            BENCHES[name](figures, repeat)
    for name, values in figures.items():
        print(f"{name:<60} {statistics.median(values):>12,.2f}   ({min(values):,.2f} to {max(values):,.2f})")
    if args.json:
        record = {"cores": os.cpu_count(), "repeats": args.repeats, "figures": figures}
        args.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
