"""The measurements of `rltrain bench replay` as a report. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rltrain.bench.figures import Figure, ratio
from rltrain.bench.replay_sides import ALPHA, Case, N, Rltrain, T
from rltrain.bench.report import Cell, Chart, Report, Table

if TYPE_CHECKING:
    from rltrain.bench.replay import Measurement, Plan

OWN = Rltrain.label
INSERT, PAIR, GATHER, BYTES = "inserts/s", "pairs/s", "gathers/s", "bytes per transition"
_MEANINGS = {
    INSERT: "transitions put into a full replay, with their priorities",
    PAIR: "batches drawn with weights, gathered, and their priorities updated",
    GATHER: "batches gathered, the items drawn beforehand",
    BYTES: "measured: resident memory after filling less before",
}


def report_of(measured: list[Measurement], notes: list[str], plan: Plan, record: dict[str, Any]) -> Report:
    """Return what is there so far."""
    how = (
        f"medians of {plan.repeats} turns of {plan.turn_s:g} s that alternate, (lowest to highest); {N} envs a group, "
        f"fragments of {T} steps, alpha {ALPHA}"
    )
    report = Report("rltrain bench replay", how, record, notes=[
        "rltrain is so many times: ratios turn by turn, in the turns in which both were measured; by CPU time: of the "
        "process with all its threads, which other work on the machine disturbs less",
        *notes,
    ])  # fmt: skip
    for case in plan.cases:
        own = [x for x in measured if x.case == case and x.values]
        report.tables += _tables(case, own, plan)
        chart = _chart(case, own)
        report.charts += [chart] if chart.series else []
    return report


def _tables(case: Case, measured: list[Measurement], plan: Plan) -> Iterable[Table]:
    for what in (INSERT, PAIR, GATHER, BYTES):
        for size in plan.batch_sizes if what in (PAIR, GATHER) else (None,):
            block = [x for x in measured if (x.what, x.batch_size) == (what, size)]
            if not block:
                continue
            batch = "" if size is None else f", batch {size:,}"
            compares = what in (INSERT, PAIR)
            columns = ("", what, *(("rltrain is so many times", "by CPU time") if compares else ()))
            columns += ("of numpy's gather", "by CPU time") if what == PAIR else ()
            table = Table(f"{case}: {what}{batch}: {_MEANINGS[what]}", columns)
            for label in dict.fromkeys(x.side for x in block):
                values = [value for x in block if x.side == label for value in x.values]
                cells: list[Cell] = [Figure(what, values)]
                if compares:
                    cells += [_or_dash(ratio_to_own(label, block, by_cpu)) for by_cpu in (False, True)]
                if what == PAIR:
                    is_own = label == OWN
                    cells += [_or_dash(share_of_limit(measured, size, c)) if is_own else "-" for c in (False, True)]
                table.rows.append((label, *cells))
            yield table


def _chart(case: Case, measured: list[Measurement]) -> Chart:
    chart = Chart(f"{case}: drawn, gathered and updated", "rows of a batch", PAIR)
    pairs = [x for x in measured if x.what == PAIR]
    for label in dict.fromkeys(x.side for x in pairs):
        sizes = dict.fromkeys(x.batch_size for x in pairs if x.side == label)
        chart.series[label] = [
            (str(size), Figure(PAIR, [v for x in pairs if (x.side, x.batch_size) == (label, size) for v in x.values]))
            for size in sizes
        ]
    return chart


def _or_dash(figure: Figure) -> Cell:
    return figure if figure.values else "-"


def ratio_to_own(label: str, block: list[Measurement], by_cpu: bool = False) -> Figure:
    """Return how many times as much rltrain did in the same turns; empty for itself and for who was never beside it.

    Args:
        label: of the side.
        block: measurements of one case, one kind and one batch size.
        by_cpu: by CPU time, not by the clock.
    """
    found = Figure("x")
    for theirs in block:
        if theirs.side == label != OWN:
            own = [x for x in block if x.side == OWN and x.beside == theirs.beside]
            found.values += [v for x in own for v in ratio(_figure(x, by_cpu), _figure(theirs, by_cpu)).values]
    return found


def share_of_limit(measured: list[Measurement], batch_size: int | None, by_cpu: bool = False) -> Figure:
    """Return rltrain's pairs over numpy's gathers of as many rows, turn by turn, of measurements of one case."""
    drawn = [x for x in measured if (x.what, x.batch_size, x.side) == (PAIR, batch_size, OWN)]
    moved = {x.beside: x for x in measured if (x.what, x.batch_size) == (GATHER, batch_size) and x.side != OWN}
    found = Figure("x")
    for x in drawn:
        if x.beside in moved:
            found.values += ratio(_figure(x, by_cpu), _figure(moved[x.beside], by_cpu)).values
    return found


def _figure(x: Measurement, by_cpu: bool) -> Figure:
    return Figure(x.what, x.cpu_values if by_cpu else x.values)
