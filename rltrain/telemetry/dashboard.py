"""The dashboard: one frame of text for each update, drawn in place by Rich.

Owns: the terminal between `start` and `stop`. Called by the supervisor's thread alone; has no thread of its own, so
whatever goes wrong in drawing is raised to the caller. The last frame stays on the screen.
If the process ends without `stop` (short of SIGKILL): an exit hook shows the cursor again.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rltrain.telemetry import panels
from rltrain.telemetry.figures import printable
from rltrain.telemetry.glyphs import UNICODE, Glyphs, glyphs_for
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.sample import Sample
from rltrain.telemetry.verdict import Verdict

_STYLES = {
    "compute": "green", "copy": "cyan", "weights": "magenta", "wait": "yellow", "boot": "dim",
    "bold": "bold", "dim": "dim", "verdict": "bold", "warning": "red", "": "",
}
_ROOMY_HEIGHT, _ROOMY_WIDTH = 36, 100
_WARNING_LINES = 8


def console_for(stream: TextIO) -> Console:
    """Return a console on a terminal; it respects NO_COLOR."""
    return Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False, soft_wrap=False)


class Dashboard:
    """Shows a run on a terminal of 80x24 or more; smaller ones lose the lower lines first.

    Args:
        console: to draw on.
        header: of the run.
        glyphs: characters for bars; None chooses by encoding and locale.
    """

    def __init__(self, console: Console, header: RunHeader, glyphs: Glyphs | None = None):
        self._console, self._header = console, header
        self._glyphs = glyphs or glyphs_for(console.encoding, os.environ)
        self._encoding = console.encoding if self._glyphs is UNICODE else "ascii"
        self._history = panels.History()
        self._live: Live | None = None

    def start(self) -> None:
        """Take the terminal."""
        self._live = Live(
            console=self._console, auto_refresh=False, screen=False, vertical_overflow="crop",
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )
        atexit.register(self.stop)
        self._live.start()

    def update(
        self, sample: Sample | None, verdict: Verdict | None, warnings: list[str], phase: str, is_last: bool = False
    ) -> None:
        """Draw a frame; None where there is nothing yet; `is_last` when `sample` is of the whole run that has ended."""
        if self._live is None:
            return
        if sample is not None and not is_last:
            self._history.add(sample)
        # One column less, since a full line moves some terminals' cursor on; one line less for the cursor itself.
        width, height = self._console.width - 1, self._console.height - 1
        # Laid out before Rich is touched: when this raises, `stop` still has the last frame to leave behind.
        lines = self.lines(sample, verdict, warnings, phase, width, height, is_last)
        self._live.update(Group(*(self._text(line, width) for line in lines)), refresh=True)

    def stop(self) -> None:
        """Give the terminal back, the cursor shown and the last frame left standing. May be called again."""
        live, self._live = self._live, None
        if live is None:
            return
        atexit.unregister(self.stop)
        try:
            live.stop()
        except OSError:
            pass  # the terminal has gone: there is nothing to restore
        except Exception:
            self._console.show_cursor(True)
            raise

    def lines(
        self, sample: Sample | None, verdict: Verdict | None, warnings: list[str], phase: str, width: int, height: int,
        is_last: bool = False,
    ) -> list[panels.Line]:
        """Return the frame's lines, at most `height`."""
        header, glyphs, history = self._header, self._glyphs, self._history
        is_roomy = height >= _ROOMY_HEIGHT and width >= _ROOMY_WIDTH
        gap: list[panels.Line] = [[]]
        frame = [panels.title(header, phase), panels.progress(header, sample, history, glyphs, width, is_last)]
        if sample is None:
            frame += [*gap, *([(note, "")] for note in header.notes)]
        else:
            frame += [panels.speed(header, sample)]
            frame += panels.sparklines(history, glyphs, width) if height >= 22 else []
            frame += [*gap, panels.legend(glyphs, width)]
            frame += panels.processes(sample, glyphs, width, max_lines=height - 22 if is_roomy else 4)
            frame += [*gap, panels.ring(sample, glyphs, width), panels.inference(sample), panels.lag(sample)]
            frame += panels.replay(sample, header)
            frame += panels.gpus(sample, max_lines=8 if is_roomy else 2)
            frame += [*(gap if is_roomy else []), *panels.verdict(verdict, width)]
        return (frame + panels.warnings(warnings, width, max(0, min(_WARNING_LINES, height - len(frame)))))[:height]

    def _text(self, line: panels.Line, width: int) -> Text:
        text = Text(no_wrap=True, overflow="crop")
        for part, style in line:
            text.append(printable(part, self._encoding), style=_STYLES[style])
        text.truncate(width, overflow="crop")
        return text
