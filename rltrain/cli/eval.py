"""`rltrain eval`: play episodes with a trained policy."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rltrain.errors import ConfigError


@click.command("eval")
@click.argument("run", metavar="RUN|CHECKPOINT")
@click.option("--episodes", type=click.IntRange(1, 1_000_000), default=10, show_default=True,
              help="Episodes to play.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the most likely one.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True,
              help="Seed of envs and actions.")
@click.option("--video", "video_dir", metavar="DIR", type=click.Path(path_type=Path),
              help="Record the episodes as video files in this folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output, nothing else.")
def command(
    run: str, episodes: int, stochastic: bool, seed: int, video_dir: Path | None, as_json: bool
) -> int:
    """Play episodes with the policy of a run or of one checkpoint file.

    RUN is a run's folder, its name (of several, the newest), or `latest`: the newest run with a checkpoint. A name and
    `latest` are looked for in runs/; of runs elsewhere (run.dir) give the folder. A module of your own is looked for in
    the folder that the run was started in. The JSON of an earlier evaluation with the same seed is replaced.

    Prints mean, standard deviation and lengths, and writes them as JSON into the run folder.

    \b
    Example:
      rltrain eval latest --episodes 20
      rltrain eval latest --video videos
    """
    path = _find(run)
    from rltrain.workers.evaluator import evaluate_checkpoint

    with _output_to_stderr() if as_json else contextlib.nullcontext():
        result = evaluate_checkpoint(path, episodes, stochastic, video_dir, seed, _progress(episodes, as_json))
    _clear_progress(as_json)
    for warning in result["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    target = _result_path(Path(result["checkpoint"]), seed, stochastic)
    try:
        target.write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        reason = f"the result cannot be written to {target}: {error.strerror}"
        raise ConfigError(f"{reason}. Make the folder writable.") from None
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        click.echo(_table(result, stochastic))
        click.echo(f"written to {target}")
        if video_dir is not None:
            click.echo(f"videos in {video_dir}")
    return 0


@contextlib.contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Send to standard error what an env or a library writes meanwhile, by `print`, by C code or straight to 1."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _find(run: str) -> Path:
    if Path(run).is_file():
        return Path(run)
    from rltrain.supervisor.run_list import find_run

    return find_run(run, Path("runs"))


def _result_path(checkpoint: Path, seed: int, stochastic: bool) -> Path:
    """`eval-<checkpoint>-seed<seed>.json` in the run folder, or beside a checkpoint that lies elsewhere."""
    folder = checkpoint.absolute().parent
    name = f"eval-{checkpoint.stem}-seed{seed}{'-stochastic' if stochastic else ''}.json"
    return (folder.parent if folder.name == "checkpoints" else folder) / name


def _progress(episodes: int, as_json: bool) -> Callable[[int], None]:
    """Return a function that shows how many episodes are done, where somebody watches."""

    def show(num_done: int) -> None:
        if not as_json and sys.stderr.isatty():
            click.echo(f"\r{num_done} of {episodes} episodes", nl=False, err=True)

    return show


def _clear_progress(as_json: bool) -> None:
    if not as_json and sys.stderr.isatty():
        click.echo("\r" + " " * 40 + "\r", nl=False, err=True)


def _table(result: dict[str, Any], stochastic: bool) -> str:
    returns = result["returns"]
    rows = [
        ("env", result["env_id"]),
        ("checkpoint", result["checkpoint"]),
        ("trained for", f"{result['env_steps']:,} env steps"),
        ("actions", "sampled" if stochastic else "most likely"),
        ("episodes", str(len(returns))),
        ("return", f"{result['return_mean']:.2f} +- {result['return_std']:.2f} (mean, std)"),
        ("", f"{min(returns):.2f} to {max(returns):.2f}"),
        ("length", f"{result['length_mean']:.1f} env steps (mean)"),
        ("", f"{min(result['lengths'])} to {max(result['lengths'])}"),
        ("time", f"{result['seconds']:.1f} s"),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)
