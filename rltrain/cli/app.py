"""The group of all commands, each imported when it is used, and what errors look like to the user."""

from __future__ import annotations

import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import click

from rltrain.errors import BootError, ConfigError, RltrainError

COMMANDS = {
    "doctor": "Say what this machine has, and check an environment.",
    "run": "Train.",
    "eval": "Play episodes with a trained policy.",
    "runs": "List the runs.",
    "board": "Show curves in TensorBoard.",
    "bench": "Measure rltrain beside limits, loops and libraries.",
    "tune": "Find the sizes that are fastest on this machine.",
    "config": "Show options, their values and meanings.",
}
"""In the order a user meets them -> first line of help. The module of a command has its name."""

_LIMITS = {
    errno.EMFILE: "a process of rltrain may not open more files. Raise `ulimit -n`; 256 are enough for most runs.",
    errno.ENFILE: "this machine may not open more files. End other programs, or raise fs.file-max.",
    errno.EAGAIN: "no further process or thread may be started. Raise `ulimit -u`, or use fewer actors.",
    errno.ENOMEM: "there is not enough memory. Use fewer actors or smaller batches, or raise `ulimit -v`.",
}
"""Errors of the system that say that a limit of this machine or shell is too low -> what to do."""

CLOSED_OUTPUT_EXIT_CODE = 1
"""Click's own code for it."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"rltrain.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is answered with the nearest."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], list(COMMANDS), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"there is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click takes any broken pipe for a reader of the output that went away."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if _is_reader_gone():
                raise
            raise RuntimeError("the pipe to another process broke") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rltrain", prog_name="rltrain")
def app() -> None:
    """Train reinforcement-learning policies on this machine, and see what holds training back.

    \b
    Example:
      rltrain run configs/cartpole.toml
      rltrain eval latest
    """


def run_app(arguments: Sequence[str] | None) -> int:
    """Run a command and return the exit code; errors raised on purpose become one message without traceback."""
    try:
        code = app.main(None if arguments is None else list(arguments), prog_name="rltrain", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort as error:  # made of a KeyboardInterrupt
        raise KeyboardInterrupt from error
    except RltrainError as error:
        _show(error)
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = CLOSED_OUTPUT_EXIT_CODE
    except OSError as error:
        if error.errno not in _LIMITS:
            raise
        click.echo(f"error: {error.strerror or error}: {_LIMITS[error.errno]}", err=True)
        code = BootError.exit_code
    return code or 0


def _show(error: RltrainError) -> None:
    blocks = error.problems if isinstance(error, ConfigError) else [str(error)]
    click.echo("\n".join(f"error: {block}" for block in blocks), err=True)


def _is_reader_gone() -> bool:
    """Whether standard output itself is the pipe that broke, as with `| head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
