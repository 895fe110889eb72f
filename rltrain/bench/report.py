"""What a bench says, whatever it measured: tables, charts and notes, as lines of text and as JSON. Pure.

`bench/page.py` makes the HTML page of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rltrain.bench.figures import Figure
from rltrain.telemetry.figures import decimal

Cell = Figure | str
_GAP = "  "


@dataclass
class Table:
    """Rows of figures under headings.

    Args:
        title: what was measured, with its unit.
        columns: headings; the first is that of the row labels.
        rows: label, then one cell for each further column.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)


@dataclass
class Chart:
    """A picture of figures: bars where x is a name, lines where it is a number.

    Args:
        title: what it shows.
        x_label: of the horizontal axis.
        y_label: of the vertical axis, with the unit.
        series: label -> (x, figure) in order.
        limits: label -> height of a horizontal line, such as the machine's limit.
    """

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[str | float, Figure]]] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """A bench's result, complete or not.

    Args:
        title: the command's name and its subject.
        how: how it was measured: turns, lengths, what alternated.
        record: `bench.record.record`.
        tables: in order.
        charts: in order.
        notes: what was left out and why, and what to make of it.
        is_complete: whether nothing was interrupted.
    """

    title: str
    how: str
    record: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_complete: bool = True


def lines_of(report: Report) -> Iterable[str]:
    """Write everything, tables aligned."""
    yield from _heading(report)
    for table in report.tables:
        yield ""
        yield table.title
        rows = [table.columns, *(tuple(map(_text, row)) for row in table.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
        for row in rows:
            cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
            yield ("  " + _GAP.join(cells)).rstrip()
    if report.notes:
        yield ""
        yield from (f"note: {note}" for note in dict.fromkeys(report.notes))


def _heading(report: Report) -> Iterable[str]:
    record = report.record
    memory = f"{record['memory_bytes'] / 2**30:.1f} GiB"
    yield f"{record['command']}   {record['time']}, commit {record['commit'] or 'unknown'}"
    yield f"{record['cpu']}, {record['usable_cores']} cores, {memory}, load {record['load_average']:.1f} at the start"
    yield ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield report.how


def _text(cell: Cell) -> str:
    """A figure as its median and spread."""
    if isinstance(cell, str):
        return cell
    if cell.median is None:
        return cell.note or "-"
    text = number(cell.median)
    if len(cell.values) > 1:
        text += f" ({number(min(cell.values))} to {number(max(cell.values))})"
    return f"{text} {cell.note}".rstrip()


def number(value: float) -> str:
    """Write a number with three digits or more, thousands apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return decimal(value) if abs(value) >= 10 else f"{value:.3g}"


def as_json(report: Report) -> dict[str, Any]:
    """Return everything, JSON-able: each figure with all its values."""
    return {
        "title": report.title,
        "how": report.how,
        "record": report.record,
        "is_complete": report.is_complete,
        "notes": list(dict.fromkeys(report.notes)),
        "tables": [
            {
                "title": table.title,
                "columns": list(table.columns),
                "rows": [[cell if isinstance(cell, str) else _as_json(cell) for cell in row] for row in table.rows],
            }
            for table in report.tables
        ],
    }


def _as_json(figure: Figure) -> dict[str, Any]:
    values = figure.values
    spread = {"lowest": min(values), "highest": max(values)} if values else {}
    return {"unit": figure.unit, "median": figure.median, **spread, "values": values, "note": figure.note}
