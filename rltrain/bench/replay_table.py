"""The figures of `rltrain bench replay` as lines of text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rltrain.bench.replay import BYTES, GATHER, INSERT, PAIR, Figure, Plan, median
from rltrain.bench.replay_sides import ALPHA, N, Rltrain, T
from rltrain.telemetry.figures import count

OWN = Rltrain.label
_MEANINGS = {
    INSERT: "transitions put into a full replay, with their priorities",
    PAIR: "batches drawn with weights, gathered, and their priorities updated",
    GATHER: "batches gathered, the items drawn beforehand",
    BYTES: "measured: resident memory after filling less before",
}


def lines_of(figures: list[Figure], notes: list[str], plan: Plan, record: dict[str, Any]) -> Iterable[str]:
    """Write everything that was measured."""
    memory = f"{record['memory_bytes'] / 2**30:.1f} GiB"
    yield f"{record['command']}   {record['time']}, commit {record['commit'] or 'unknown'}"
    yield f"{record['cpu']}, {record['usable_cores']} cores, {memory}, load {record['load_average']:.1f} at the start"
    yield ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    yield f"medians of {plan.repeats} turns of {plan.turn_s:g} s that alternate, (lowest to highest)"
    yield "ratios of medians by the clock, (by CPU time)"
    yield f"{N} envs a group, fragments of {T} steps, alpha {ALPHA}"
    for case in plan.cases:
        own = [figure for figure in figures if figure.case == case and figure.values]
        if own:
            yield ""
            yield str(case)
            yield from _case_lines(own, plan)
    if notes:
        yield ""
        yield from (f"note: {note}" for note in dict.fromkeys(notes))


def _case_lines(figures: list[Figure], plan: Plan) -> Iterable[str]:
    width = max(len(figure.side) for figure in figures)
    for what in (INSERT, PAIR, GATHER, BYTES):
        for size in plan.batch_sizes if what in (PAIR, GATHER) else (None,):
            block = [figure for figure in figures if (figure.what, figure.batch_size) == (what, size)]
            if not block:
                continue
            batch = "" if size is None else f", batch {size:,}"
            yield f"  {what}{batch}: {_MEANINGS[what]}"
            for label in dict.fromkeys(figure.side for figure in block):
                values = [value for figure in block if figure.side == label for value in figure.values]
                spread = f"({count(min(values))} to {count(max(values))})" if len(values) > 1 else ""
                compared = _compared(label, what, size, block, figures)
                yield f"    {label:{width}} {count(median(values)):>10}  {spread:24} {compared}".rstrip()


def _compared(label: str, what: str, size: int | None, block: list[Figure], figures: list[Figure]) -> str:
    """How many times as much rltrain did in the same rounds; of rltrain itself, how near the limit its draws are."""
    if label == OWN:
        by_clock, by_cpu = (share_of_limit(figures, size, by_cpu) if what == PAIR else None for by_cpu in (False, True))
        return "" if by_clock is None or by_cpu is None else f"{by_clock:.0%} ({by_cpu:.0%}) of numpy's gather"
    by_clock, by_cpu = (ratio_to_own(label, block, by_cpu) if what != BYTES else None for by_cpu in (False, True))
    return "" if by_clock is None or by_cpu is None else f"rltrain {by_clock:.2f} x ({by_cpu:.2f} x)"


def ratio_to_own(label: str, block: list[Figure], by_cpu: bool = False) -> float | None:
    """Return rltrain's median over that of a side, in the rounds in which both were measured.

    Args:
        label: of the side.
        block: figures of one case, one kind and one batch size.
        by_cpu: by CPU time, not by the clock.
    """
    rounds = {figure.beside for figure in block if figure.side == label}
    theirs = [value for figure in block if figure.side == label for value in _values(figure, by_cpu)]
    own = [x for figure in block if figure.side == OWN and figure.beside in rounds for x in _values(figure, by_cpu)]
    return median(own) / median(theirs) if own and theirs else None


def share_of_limit(figures: list[Figure], batch_size: int | None, by_cpu: bool = False) -> float | None:
    """Return rltrain's pairs over numpy's gathers of as many rows, of figures of one case."""
    drawn = [f for f in figures if (f.what, f.batch_size, f.side) == (PAIR, batch_size, OWN)]
    moved = [f for f in figures if (f.what, f.batch_size) == (GATHER, batch_size) and f.side != OWN]
    own, limit = ([x for figure in found for x in _values(figure, by_cpu)] for found in (drawn, moved))
    return median(own) / median(limit) if own and limit else None


def _values(figure: Figure, by_cpu: bool) -> list[float]:
    return figure.cpu_values if by_cpu else figure.values


def as_json(
    figures: list[Figure], notes: list[str], plan: Plan, record: dict[str, Any], is_complete: bool
) -> dict[str, Any]:
    """Return everything, JSON-able: every value with its median, lowest and highest."""
    return {
        "record": record,
        "is_complete": is_complete,
        "repeats": plan.repeats,
        "turn_s": plan.turn_s,
        "notes": list(dict.fromkeys(notes)),
        "figures": [
            {
                **asdict(figure), "median": median(figure.values), "lowest": min(figure.values),
                "highest": max(figure.values),
            }
            for figure in figures if figure.values
        ],
    }
