"""The command line: `main`, and one file for each command, read only when that command is used.

`rltrain --help` imports neither torch nor gymnasium, rich or pydantic.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

INTERRUPTED_EXIT_CODE = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        _open_missing_streams()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a locale without a character is no reason to fail
        from rltrain.cli.app import run_app  # here, so that Ctrl-C while click is imported ends as quietly

        code = run_app(arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        # Not sys.exit: an interrupt that came while a dataclass was made has Python end itself by SIGINT instead.
        os._exit(INTERRUPTED_EXIT_CODE)
    sys.exit(code)


def _open_missing_streams() -> None:
    """Point streams that were closed (`>&-`) to /dev/null, lest the next file opened be taken for one of them."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
            setattr(sys, name, open(fd, "r" if fd == 0 else "w", closefd=False))
