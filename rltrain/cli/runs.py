"""`rltrain runs`: the table of runs."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.command("runs")
@click.argument("folder", metavar="[DIR]", required=False, default="runs", type=click.Path(path_type=Path))
def command(folder: Path) -> int:
    """List the runs of a folder (runs/ by default), newest first: state, env steps, return, duration, start.

    States: running, finished, target (the return asked for was reached), stopped, failed,
    killed (there is no summary), ended (the summary does not say how). The steps of a running
    or killed run are those of its last checkpoint; the duration counts resumed parts too.

    \b
    Example:
      rltrain runs
    """
    from rltrain.errors import ConfigError
    from rltrain.supervisor.run_list import list_runs
    from rltrain.telemetry.figures import decimal

    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file. Accepted: the folder of the runs (run.dir).")
    if not folder.exists() and str(folder) != "runs":
        raise ConfigError(f"there is no folder {str(folder)!r}. Accepted: the folder of the runs (run.dir).")
    runs = list_runs(folder)
    if not runs:
        click.echo(f"No runs in {folder}. Start one with `rltrain run CONFIG`.")
        return 0
    rows = [("run", "state", "env steps", "return", "duration", "started")]
    for run in runs:
        rows.append((
            run.name,
            run.state,
            "-" if run.env_steps is None else f"{run.env_steps:,}",
            "-" if run.return_mean is None else decimal(run.return_mean),
            "-" if run.duration_s is None else _duration(run.duration_s),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
        ))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<<>>><", widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
    return 0


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
