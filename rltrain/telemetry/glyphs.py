"""Bars and sparklines from characters that a terminal surely has: block elements, or plain ASCII."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("compute", "copy", "weights", "wait", "boot")
"""What a process does in a state, as the bars show it."""

_KIND_OF_STATE = {
    "env_step": "compute", "forward": "compute", "update": "compute",
    "write": "copy", "gather": "copy", "h2d": "copy", "d2h": "copy", "reply": "copy",
    "publish": "weights", "load_weights": "weights", "checkpoint": "weights",
    "boot": "boot",
}


def kind_of(state: str) -> str:
    """Return the kind of a state; whatever is not listed waits."""
    return _KIND_OF_STATE.get(state, "wait")


@dataclass(frozen=True)
class Glyphs:
    """One set of characters; each kind has its own, so that colour is not needed to tell them apart."""

    fill: dict[str, str]
    spark: str
    full: str
    empty: str

    def stacked(self, parts: Mapping[str, float], width: int) -> list[tuple[str, str]]:
        """Draw shares side by side.

        Args:
            parts: kind -> share, summing to at most 1.
            width: of the whole bar in characters.

        Returns:
            (characters, kind) in order, `width` characters in all when the shares sum to 1: largest remainders
            get the characters that rounding down leaves over.
        """
        exact = {kind: parts.get(kind, 0.0) * width for kind in KINDS}
        cells = {kind: math.floor(x) for kind, x in exact.items()}
        spare = round(sum(exact.values())) - sum(cells.values())
        for kind in sorted(KINDS, key=lambda k: cells[k] - exact[k])[: max(0, spare)]:
            cells[kind] += 1
        return [(self.fill[kind] * n, kind) for kind, n in cells.items() if n]

    def progress(self, share: float, width: int) -> str:
        """Draw a share of a whole."""
        done = round(min(1.0, max(0.0, share)) * width)
        return self.full * done + self.empty * (width - done)

    def sparkline(self, values: list[float], width: int) -> str:
        """Draw the last `width` values between their smallest and largest."""
        shown = [value for value in values[-width:] if math.isfinite(value)]
        if not shown:
            return ""
        low, high = min(shown), max(shown)
        top = len(self.spark) - 1
        scale = top / (high - low) if high > low else 0.0
        return "".join(self.spark[round((value - low) * scale)] for value in shown)


UNICODE = Glyphs(
    fill=dict(zip(KINDS, "█▓▒░·", strict=True)),
    spark="▁▂▃▄▅▆▇█",
    full="█",
    empty="░",
)
ASCII = Glyphs(
    fill=dict(zip(KINDS, "#=+-.", strict=True)),
    spark="_.-:=+*#",
    full="#",
    empty=".",
)


def glyphs_for(encoding: str | None, environ: Mapping[str, str]) -> Glyphs:
    """Choose the set of a terminal.

    Args:
        encoding: of the stream.
        environ: for the locale. Python makes its streams UTF-8 in the C locale too, so their encoding alone does
            not tell what the terminal shows.
    """
    language = environ.get("LANG", "")
    character_type = environ.get("LC_CTYPE", "")
    if character_type == "C.UTF-8" and language in ("", "C", "POSIX"):
        character_type = ""  # set by the interpreter itself at its start (PEP 538)
    locale_name = environ.get("LC_ALL", "") or character_type or language
    is_utf8 = all("utf" in (name or "").lower() for name in (encoding, locale_name))
    return UNICODE if is_utf8 else ASCII
