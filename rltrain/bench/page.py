"""A bench's report as one self-contained HTML file. Needs matplotlib: the extra `report`."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from statistics import median

from rltrain.bench.report import Cell, Chart, Report, number
from rltrain.errors import ConfigError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; } td small { color: #667; }
code { background: #f3f4f6; padding: .1rem .3rem; } 
.notes li { margin: .2rem 0; }
svg { max-width: 100%; height: auto; }
.unfinished { background: #fff3cd; padding: .5rem .8rem; }
"""


def check_available() -> None:
    """Find out before measuring whether a page can be made.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--html needs matplotlib: pip install 'rltrain[report]' ({error}).") from error


def page_of(report: Report) -> str:
    """Return the page; it loads nothing from anywhere."""
    record = report.record
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    machine = (
        f"{record['cpu']}, {record['usable_cores']} cores, {record['memory_bytes'] / 2**30:.1f} GiB, "
        f"{record['system']}, load {record['load_average']:.1f} at the start"
    )
    parts = [
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{_safe(report.title)}</title>",
        f"<style>{_STYLE}</style></head><body><h1>{_safe(report.title)}</h1>",
        "" if report.is_complete else "<p class='unfinished'>Interrupted: this is what was measured until then.</p>",
        f"<p><code>{_safe(record['command'])}</code><br>{_safe(record['time'])}, commit "
        f"{_safe(record['commit'] or 'unknown')}<br>{_safe(machine)}<br>{_safe(versions)}</p>",
        f"<p>{_safe(report.how)}</p>",
    ]
    for chart in report.charts:
        if any(figure.values for points in chart.series.values() for _, figure in points):
            parts.append(f"<h2>{_safe(chart.title)}</h2>{_drawn(chart)}")
    for table in report.tables:
        parts.append(f"<h2>{_safe(table.title)}</h2><div class='table'><table><tr>")
        parts += [f"<th>{_safe(column)}</th>" for column in table.columns]
        parts.append("</tr>")
        parts += ["<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in table.rows]
        parts.append("</table></div>")
    if report.notes:
        notes = "".join(f"<li>{_safe(note)}</li>" for note in dict.fromkeys(report.notes))
        parts.append(f"<h2>Notes</h2><ul class='notes'>{notes}</ul>")
    return "".join(parts) + "</body></html>\n"


def _safe(text: str) -> str:
    return html.escape(str(text))


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _safe(cell)
    if cell.median is None:
        return _safe(cell.note or "-")
    values = cell.values
    spread = f" <small>{number(min(values))} to {number(max(values))}</small>" if len(values) > 1 else ""
    return f"{number(cell.median)}{spread} {_safe(cell.note)}".rstrip()


def _drawn(chart: Chart) -> str:
    """Draw a chart as SVG: medians, with the spread as error bars."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rltrain"}):
        canvas = Canvas(figsize=(9, 4.2), layout="constrained")
        axes = canvas.subplots()
        names = list(dict.fromkeys(x for points in chart.series.values() for x, _ in points if isinstance(x, str)))
        for i, (label, points) in enumerate(chart.series.items()):
            shown = [(x, figure) for x, figure in points if figure.values]
            heights = [median(figure.values) for _, figure in shown]
            spread = [list(part) for part in zip(*(_errors(figure.values) for _, figure in shown), strict=True)]
            if names:
                width = 0.8 / len(chart.series)
                places = [names.index(str(x)) + (i - (len(chart.series) - 1) / 2) * width for x, _ in shown]
                axes.bar(places, heights, width, yerr=spread or None, capsize=3, label=label)
            else:
                axes.errorbar([x for x, _ in shown], heights, yerr=spread or None, marker="o", capsize=3, label=label)
        for i, (label, height) in enumerate(chart.limits.items()):
            axes.axhline(height, linestyle="--", color=f"C{i + 7}", label=label)
        if names:
            axes.set_xticks(range(len(names)), [str(name) for name in names])
        elif _is_spread_wide(x for points in chart.series.values() for x, _ in points):
            axes.set_xscale("log", base=2)
        axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda height, _: number(height))
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart.series) + len(chart.limits) > 1:
            axes.legend(frameon=False)
        text = io.StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _errors(values: list[float]) -> tuple[float, float]:
    middle = median(values)
    return middle - min(values), max(values) - middle


def _is_spread_wide(places: Iterable[object]) -> bool:
    numbers = [x for x in places if isinstance(x, int | float) and x > 0]
    return bool(numbers) and max(numbers) >= 16 * min(numbers)
