"""`rltrain run`: train, or resume training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrain.errors import ConfigError

if TYPE_CHECKING:
    from rltrain.config.load import LoadedConfig


@click.command("run")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
              help="Set one option over the file's value; may be given several times.")
@click.option("--name", help="Name of the run: run.name.")
@click.option("--seed", type=int, help="Seed of everything: run.seed.")
@click.option("--resume", metavar="RUN", help="Continue a run: its folder, its name (of several, the newest), or "
              "`latest`, the newest with a checkpoint. CONFIG is then the one in its folder unless given; a name and "
              "`latest` are looked for in runs/, or in the run.dir of CONFIG or of --set.")
@click.option("--no-dashboard", is_flag=True, help="Print plain lines instead of the live dashboard.")
def command(
    config: Path | None, overrides: tuple[str, ...], name: str | None, seed: int | None, resume: str | None,
    no_dashboard: bool,
) -> int:
    """Train as CONFIG says, a TOML file. Everything is written into a new folder under runs/.

    \b
    Example:
      rltrain run configs/cartpole.toml
      rltrain run configs/cartpole.toml --set algo.ppo.learning_rate=1e-3 --seed 1
      rltrain run --resume latest --set run.total_env_steps=2_000_000

    Exit code: 0 finished, 2 configuration, 3 a process did not start, 4 a process died too often,
    5 training diverged or data was invalid, 130 or 143 stopped by Ctrl-C or SIGTERM with a checkpoint
    (a second time, or by SIGQUIT, 131: at once, without).
    """
    if config is None and resume is None:
        raise click.UsageError("CONFIG is missing. Name a TOML file such as configs/cartpole.toml, or --resume RUN.")
    from rltrain.supervisor.launcher import Launcher
    from rltrain.supervisor.logs import OutputPump

    launcher = Launcher(OutputPump())
    launcher.start_zygotes()  # torch takes seconds to import: it does so while the configuration is read
    try:
        loaded, folder = _load(config, list(overrides), name, seed, resume)
        for note in loaded.adjustments:
            click.echo(f"note: {note}", err=True)
        from rltrain.supervisor.supervisor import run

        return run(loaded, folder, not no_dashboard, launcher)
    finally:
        launcher.close()


def _load(
    config: Path | None, overrides: list[str], name: str | None, seed: int | None, resume: str | None
) -> tuple[LoadedConfig, Path | None]:
    """Read the configuration, and say what differs from the resumed run's."""
    from rltrain.config.load import load

    if resume is None:
        return load(config, overrides, name, seed), None
    from rltrain.supervisor.run_list import checkpointed, find_run

    if name is not None:
        raise ConfigError("--name cannot be given with --resume: a run keeps its name and its folder.")
    folder = find_run(resume, _runs_dir(config, overrides))
    saved = folder / "config.toml"
    if not saved.is_file():
        raise ConfigError(f"{folder} has no config.toml: the run ended before it began. Start it anew.")
    loaded = load(config or saved, overrides, name, seed)
    for line in _changes(load(saved), loaded):
        click.echo(f"changed: {line}", err=True)
    learned, total = checkpointed(folder)[0], loaded.config.run.total_env_steps
    if learned is not None and learned >= total:
        raise ConfigError(
            f"{folder.name} has learned from {learned:,} env steps, all of run.total_env_steps = {total}: nothing is "
            f"left to do. To train on, give more, such as --set run.total_env_steps={2 * learned}."
        )
    return loaded, folder


def _runs_dir(config: Path | None, overrides: list[str]) -> Path:
    """Where a run to resume is looked for by its name: `run.dir`, of the file and of what overrides it."""
    from rltrain.config.load import load

    if config is not None:
        return Path(load(config, overrides).config.run.dir)
    from rltrain.config.source import read

    source, _ = read(None, overrides, {})  # problems are told when the saved configuration is read with them
    section = source.values.get("run")
    runs_dir = section.get("dir") if isinstance(section, dict) else None
    return Path(runs_dir if isinstance(runs_dir, str) else "runs")


def _changes(before: LoadedConfig, after: LoadedConfig) -> list[str]:
    from rltrain.config.load import describe_options

    old = {option.path: option.value for option in describe_options(before)}
    new = {option.path: option.value for option in describe_options(after)}
    return [
        f"{path}: {old.get(path, '-')} -> {new.get(path, '-')}"
        for path in [*new, *(p for p in old if p not in new)]
        if old.get(path) != new.get(path)
    ]
