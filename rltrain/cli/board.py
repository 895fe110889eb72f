"""`rltrain board`: TensorBoard with the runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from rltrain.errors import ConfigError, RltrainError

STOP_TIMEOUT_S = 5.0


@click.command("board")
@click.argument("runs", required=False, default="runs", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="TCP port; without it a free one is taken.")
def command(runs: Path, port: int) -> int:
    """Start TensorBoard on 127.0.0.1 with the runs of a folder (runs/ by default). Ctrl-C ends it.

    \b
    Example:
      rltrain board
      rltrain board runs --port 6006
    """
    if not runs.is_dir():
        raise ConfigError(f"there is no folder {str(runs)!r}. Name the folder of the runs (run.dir) or of one run.")
    arguments = ["--logdir", str(runs), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *arguments],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    )
    with _stopping(process):
        _serve(process)
    return 0


def _serve(process: subprocess.Popen[str]) -> None:
    """Print the address once it is there, then wait for the end."""
    assert process.stderr is not None, "started with a pipe"
    said: list[str] = []
    has_started = False
    for line in process.stderr:
        said = [*said[-20:], line.rstrip()]
        address = re.search(r"http://\S+", line) if line.startswith("TensorBoard ") else None
        if address and not has_started:
            has_started = True
            click.echo(f"TensorBoard: {address[0]}  (Ctrl-C ends it)")
            sys.stdout.flush()
    reason = "\n".join(said)
    raise RltrainError(f"TensorBoard ended with exit code {process.wait()}:\n{reason}")


@contextmanager
def _stopping(process: subprocess.Popen[str]) -> Iterator[None]:
    """Take TensorBoard along at Ctrl-C and SIGTERM, which end this command quietly."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, previous)
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()
