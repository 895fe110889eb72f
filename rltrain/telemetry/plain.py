"""Progress as plain lines, for a pipe, a log file or CI: one flushed line at an interval, no escape codes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from rltrain.telemetry.figures import count, decimal, one_line, percent, printable, replay_fill
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.sample import Sample
from rltrain.telemetry.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WARNINGS = 3
"""Warnings printed with one line; the rest are counted and stand in the log."""


class Display(Protocol):
    """What the supervisor shows a run on."""

    def start(self) -> None:
        """Begin to show."""

    def update(
        self, sample: Sample | None, verdict: Verdict | None, warnings: list[str], phase: str, is_last: bool = False
    ) -> None:
        """Show the present state, None where there is none yet; `is_last` when the run has ended."""

    def stop(self) -> None:
        """Leave the terminal as it was; may be called more than once."""


class PlainLines:
    """Prints one line at an interval, whenever the phase changes, and at the end; new warnings come before it.

    When the reader of the stream goes away, output ends and the run goes on.

    Args:
        stream: where lines go.
        header: of the run.
        interval_s: between lines.
    """

    def __init__(self, stream: TextIO, header: RunHeader, interval_s: float = 10.0):
        self._stream, self._header, self._interval_s = stream, header, interval_s
        self._is_open = True
        self._next_at = 0.0
        self._phase: str | None = None
        self._shown: dict[str, None] = {}
        self._late: list[str] = []

    def start(self) -> None:
        """Print what is run."""
        h = self._header
        self._print(f"run {h.name}: {h.env_id}, {h.algo}, schedule {h.schedule}, {h.device}; folder {h.run_folder}")
        for note in h.notes:
            self._print(note)

    def update(
        self, sample: Sample | None, verdict: Verdict | None, warnings: list[str], phase: str, is_last: bool = False
    ) -> None:
        """Print a line if one is due."""
        self._late = [warning for warning in warnings if warning not in self._shown]
        now = time.monotonic()
        if now < self._next_at and phase == self._phase and not is_last:
            return
        self._next_at, self._phase = now + self._interval_s, phase
        self._print_warnings()
        self._print(self._line(sample, verdict, phase))

    def stop(self) -> None:
        """Print the warnings that no line has shown yet."""
        self._print_warnings()

    def _line(self, sample: Sample | None, verdict: Verdict | None, phase: str) -> str:
        if sample is None:
            return phase
        parts = [
            f"{sample.time_s:.1f} s" if phase == "training" else f"{sample.time_s:.1f} s {phase}",
            f"steps {count(sample.env_steps)} ({percent(sample.env_steps / self._header.total_env_steps)})",
            f"{count(sample.env_steps_per_s)} steps/s",
            f"{decimal(sample.updates_per_s)} updates/s",
        ]
        if sample.return_mean is not None:
            parts.append(f"return {decimal(sample.return_mean)}")
        if sample.replay_transitions is not None and self._header.replay_capacity:
            parts.append(replay_fill(sample.replay_transitions, self._header.replay_capacity))
        if sample.has_long_episode:
            parts.append(f"an episode runs for {count(sample.longest_open_steps)} steps")
        if verdict is not None:
            parts.append(verdict.finding)
        return "  ".join(parts)

    def _print_warnings(self) -> None:
        for warning in self._late[:MAX_WARNINGS]:
            self._print(f"warning: {one_line(warning)}")
        if len(self._late) > MAX_WARNINGS:
            num_more = len(self._late) - MAX_WARNINGS
            self._print(f"and {num_more} more warnings, see the logs in {self._header.run_folder}")
        self._shown.update(dict.fromkeys(self._late))
        self._late = []

    def _print(self, text: str) -> None:
        if not self._is_open:
            return
        try:
            self._stream.write(printable(text, getattr(self._stream, "encoding", None) or "utf-8") + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._is_open = False
            _silence(self._stream)


def _silence(stream: TextIO) -> None:
    """Point a broken stream to /dev/null: what others print to it later, and its flush at exit, fail no more."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def choose_display(
    stream: TextIO, header: RunHeader, dashboard: bool, environ: Mapping[str, str] = os.environ
) -> Display:
    """Return the dashboard on a capable terminal, plain lines elsewhere.

    Args:
        stream: what is shown on.
        header: of the run.
        dashboard: whether the user wants the dashboard.
        environ: for `TERM`; `NO_COLOR` is respected by the dashboard.
    """
    if not dashboard or environ.get("TERM", "dumb") in ("dumb", "unknown", "") or not _is_terminal(stream):
        return PlainLines(stream, header)
    from rltrain.telemetry.dashboard import Dashboard, console_for

    return Dashboard(console_for(stream), header)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False
