"""Figures as text for a terminal: one line each, no control characters, `-` for what was not measured."""

from __future__ import annotations


def count(value: float | None) -> str:
    """Write a whole number with thousands separated, such as `1,234,567`."""
    return "-" if value is None else f"{value:,.0f}"


def decimal(value: float | None) -> str:
    """Write about four significant digits, such as `0.1234`, `12.34` or `123,400`."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Write a share in [0, 1], such as `12 %`."""
    return "-" if share is None else f"{100 * share:.0f} %"


def replay_fill(transitions: int, capacity: int) -> str:
    """Write how full a replay is, such as `replay 1,494 (15 %)`."""
    return f"replay {count(transitions)} ({percent(transitions / capacity)})"


def duration(seconds: float | None) -> str:
    """Write a duration, such as `12.3 s`, `2:05 min` or `1:02:05 h`."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d} h"


def delays(*delays_us: float | None) -> str:
    """Write delays in microseconds side by side in one unit, about four characters each: `38/152 us`, `0.40/4.1 ms`."""
    if max((delay for delay in delays_us if delay is not None), default=0.0) < 1000:
        return "/".join(count(delay) for delay in delays_us) + " us"
    return "/".join("-" if delay is None else _milliseconds(delay / 1000) for delay in delays_us) + " ms"


def _milliseconds(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def mebibytes(nbytes: float | None) -> str:
    """Write a size, such as `312 MiB` or `12.4 GiB`."""
    if nbytes is None:
        return "-"
    mib = nbytes / 2**20
    return f"{mib:,.0f} MiB" if mib < 4096 else f"{mib / 1024:,.1f} GiB"


def printable(text: str, encoding: str | None = "utf-8") -> str:
    """Make text of any origin safe for a terminal: no control characters, nothing outside the stream's encoding."""
    encoding = encoding or "ascii"
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: str, encoding: str | None = "utf-8") -> str:
    """Make printable text of one line, runs of white space as one space."""
    return printable(" ".join(text.split()), encoding)
