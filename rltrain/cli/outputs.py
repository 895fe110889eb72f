"""What commands that measure have in common: where their figures go, and progress with the time left."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

SECONDS_PER_LINE = 10
"""Between two lines of progress where standard error is no terminal."""


def output_options(function: Callable[..., int]) -> Callable[..., int]:
    """The options that every bench has."""
    options = (
        click.option("--quick", is_flag=True, help="Short turns: less than a minute where little else runs."),
        click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Also write every value, and what it was measured on, to this file."),
        click.option("--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Also write a page with pictures; needs the extra `report`."),
    )  # fmt: skip
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def write(file: Path, text: str) -> None:
    """Write a result; where that fails, all of it stands on the screen already."""
    from rltrain.errors import ConfigError

    try:
        file.write_text(text)
    except OSError as error:
        raise ConfigError(f"{str(file)!r} could not be written: {error.strerror}.") from error


def check_outputs(json_file: Path | None, html_file: Path | None) -> None:
    """Refuse before anything is measured what could not be written afterwards."""
    from rltrain.errors import ConfigError

    for option, file in (("--json", json_file), ("--html", html_file)):
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise ConfigError(f"{option} {str(file)!r}: there is no folder {str(file.parent)!r}. Create it first.")
        try:
            file.open("a").close()
        except OSError as error:
            raise ConfigError(f"{option} {str(file)!r} cannot be written: {error.strerror}.") from error
    if html_file is not None:
        from rltrain.bench.page import check_available

        check_available()


@contextlib.contextmanager
def progress() -> Iterator[Callable[[float, float, str], None]]:
    """Show what is being done and the time left, on standard error: a bar, or a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(20), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)
        yield lambda done_s, expected_s, what: shown.update(
            task, completed=done_s, total=expected_s, description=what
        )


class _Lines:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = -float(SECONDS_PER_LINE)

    def __call__(self, done_s: float, expected_s: float, what: str) -> None:
        from rltrain.telemetry.figures import duration

        elapsed = time.monotonic() - self._began
        if elapsed - self._last < SECONDS_PER_LINE:
            return
        self._last = elapsed
        left_s = (expected_s - done_s) * (elapsed / done_s if done_s else 1)
        click.echo(f"{what} ({duration(max(0, left_s))} left)", err=True)
