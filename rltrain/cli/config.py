"""`rltrain config show`: every option with its value, where that came from, and what it means."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from rltrain.config.load import LoadedConfig

WIDTH = 80
MEANING_INDENT = 6
MARK_WIDTH = 7


@click.group("config")
def command() -> None:
    """Show options, their values and meanings.

    \b
    Example:
      rltrain config show configs/cartpole.toml
    """


@command.command("show", short_help="Print every option: its value, origin, meaning and unit.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
              help="Set one option over the file's value; may be given several times.")
def show(config: Path, overrides: tuple[str, ...]) -> int:
    """Print every option of CONFIG: value, where it came from (default, file, flag, auto), meaning and unit.

    \b
    Example:
      rltrain config show configs/cartpole.toml
      rltrain config show configs/cartpole.toml --set pipeline.schedule=async
    """
    from rltrain.config.load import load

    loaded = load(config, list(overrides))
    _print(loaded)
    for note in loaded.adjustments:
        click.echo(f"note: {note}", err=True)
    return 0


def _print(loaded: LoadedConfig) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.width = min(console.width, WIDTH)
    with console.capture() as captured:  # a reader that went away is then met by `click.echo`, as in every command
        _print_sections(console, loaded)
    lines = (line.rstrip() for line in captured.get().splitlines())
    click.echo("\n".join(lines), color=console.is_terminal)


def _print_sections(console: Console, loaded: LoadedConfig) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from rltrain.config.load import describe_options

    for section, options in groupby(describe_options(loaded), key=lambda option: option.path.rpartition(".")[0]):
        console.print(Text(f"[{section}]", style="bold"))
        for option in options:
            left = Text(f"  {option.path.rpartition('.')[2]} = {option.value}")
            room = console.width - MARK_WIDTH - 1
            left.append(" " * max(1, room - left.cell_len))
            left.append(option.origin, style="dim" if option.origin == "default" else "bold")
            console.print(left)
            console.print(Padding(Text(option.meaning, style="dim"), (0, 0, 0, MEANING_INDENT)))
        console.print()
