"""A measurement of one configuration in a process of its own, which prints what it found as one JSON line.

Called by the bench (`measure_alone`) and by the module that measures, when it is run with `python -m` (`answer`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rltrain.bench.command import last_lines, run_to_end
from rltrain.bench.trial import TrialError, as_options
from rltrain.config.load import load
from rltrain.config.schema import Config
from rltrain.errors import RltrainError
from rltrain.registry import look_in


def measure_alone(
    module: str, config: Path, arguments: Iterable[str], overrides: Mapping[str, object], what: str
) -> dict[str, Any]:
    """Run a module that ends with `answer`, and return what it found.

    Args:
        module: its full name.
        config: TOML file.
        arguments: of its own options.
        overrides: option path -> value, over the file's.
        what: is measured, for the message.

    Raises:
        TrialError: it failed; the message has the last lines that it printed.
        KeyboardInterrupt: it was interrupted; the process has ended.
    """
    command = [sys.executable, "-m", module, str(config), *arguments, *as_options(overrides)]
    done = run_to_end(command)
    if done.returncode or not done.stdout.strip():
        raise TrialError(f"{what} failed with exit code {done.returncode}:\n{last_lines(done)}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what every such module takes: CONFIG, `--seconds`, `--set`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("config", type=Path)
    made.add_argument("--seconds", type=float, required=True)
    made.add_argument("--set", action="append", default=[], dest="overrides", metavar="section.key=value")
    return made


class Closing(Protocol):
    """What has envs to close."""

    def close(self) -> None:
        """Close them."""


Measuring = TypeVar("Measuring", bound=Closing)


def answer(
    args: argparse.Namespace, make: Callable[[Config], Measuring], measure: Callable[[Measuring], Mapping[str, Any]]
) -> int:
    """Load the configuration, measure, print one JSON line.

    Args:
        args: of `parser`.
        make: makes what measures the configuration; it is closed in any case.
        measure: returns what was found.

    Returns:
        The exit code.
    """
    try:
        config = load(args.config, args.overrides).config
        look_in(config.run.code_dir)
        with contextlib.closing(make(config)) as made:
            print(json.dumps(measure(made)), flush=True)
    except RltrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
