"""The closing summary: what a run came to, where its time went, and what to type next. Plain text, 80 columns."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Any

from rltrain.telemetry.figures import count, decimal, duration, percent
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.sample import Sample
from rltrain.telemetry.verdict import Verdict

WIDTH = 80
_LABEL = 12
_JOINED = "\u00a0"
"""A space at which no line is broken."""

_RESULTS = {
    "finished": "finished: all env steps learned from",
    "target": "finished: the target return is reached",
    "time": "finished: run.time_limit_s is over",
    "stopped": "stopped before its end",
}


def closing_summary(summary: dict[str, Any], total: Sample | None, verdict: Verdict | None, header: RunHeader) -> str:
    """Write the summary.

    Args:
        summary: what `Learner.run` returned, with `state`, `duration_s`, `run_folder`, `restarts` and `exit_code`;
            without the learner's part when the run failed. A failed run gets a short block: its error follows.
        total: the ledger's total, None when the run never got so far.
        verdict: over the whole run, or None.
        header: of the run.
    """
    lines = ["", f"rltrain: {header.name} ({header.env_id}, {header.algo}, {header.schedule})"]
    lines += _entry("result", _result(summary))
    if summary.get("state") == "failed":
        lines += _entry("env steps", _env_steps(summary, None, header))
        return "\n".join(lines + _next_steps(summary, header)) + "\n"
    lines += _entry("return", _return(summary, total, header))
    lines += _entry("env steps", _env_steps(summary, total, header))
    lines += _entry("updates", count(summary.get("updates", total.updates if total else None)))
    if total:
        lines += _ledger(total)
    if verdict:
        lines += _entry("verdict", verdict.line)
    if total and total.dropped_env_steps:
        lines += _entry("dropped", f"{count(total.dropped_env_steps)} env steps, too old when their turn came")
    if total and total.overwritten_fragments:
        lines += _entry("overwritten", f"{count(total.overwritten_fragments)} fragments that nobody had taken yet")
    if summary.get("restarts"):
        lines += _entry("restarts", f"{summary['restarts']} of dead processes, see the logs")
    lines += _next_steps(summary, header)
    return "\n".join(lines) + "\n"


def _result(summary: dict[str, Any]) -> str:
    state = summary.get("state") or "failed"
    # A failed run's learner may still have said that it stopped in good order.
    text = state if state == "failed" else _RESULTS.get(summary.get("reason") or "", state)
    code = summary.get("exit_code", 0)
    return f"{text} (exit code {code})" if code else text


def _env_steps(summary: dict[str, Any], total: Sample | None, header: RunHeader) -> str:
    env_steps = summary.get("env_steps", total.env_steps if total else 0)
    text = count(env_steps)
    if header.resumed_env_steps:
        text += f", {count(max(0, env_steps - header.resumed_env_steps))} of them in this part"
    if total:
        text += f" ({count(total.env_steps_per_s)} per second while training)"
    return f"{text}; {duration(summary.get('duration_s'))} in all"


def _return(summary: dict[str, Any], total: Sample | None, header: RunHeader) -> str:
    mean = summary.get("return_mean")
    if mean is None or mean != mean:
        return "no episode has ended"
    target = "" if header.target_return is None else f", target {header.target_return:g}"
    length = summary.get("episode_length_mean_steps")
    steps = "" if length is None or length != length else f", {decimal(length)} env steps each"
    episodes = summary.get("episodes", total.episodes if total else 0)
    shown = min(episodes, header.target_window or episodes)
    of = "1 episode" if shown == 1 else f"the last {count(shown)} episodes"
    return f"{decimal(mean)} mean of {of}{steps}{target}"


def _ledger(total: Sample) -> list[str]:
    """Time by state, one line for each role, the largest shares first."""
    lines: list[str] = []
    for role in dict.fromkeys(process.role for process in total.processes):
        shares = sorted(total.role_shares(role).items(), key=lambda item: -item[1])
        shown = [f"{state} {percent(share)}".replace(" ", _JOINED) for state, share in shares if share >= 0.005]
        if shown:
            lines += _entry(role, ", ".join(shown))
    return lines


def _next_steps(summary: dict[str, Any], header: RunHeader) -> list[str]:
    folder = shlex.quote(str(summary.get("run_folder") or header.run_folder))
    if not Path(summary.get("run_folder") or header.run_folder).is_dir():
        return _entry("checkpoint", f"unknown: the run folder {folder} has been moved or removed")
    written = summary.get("checkpoint")
    checkpoint = _that_is_there(written, summary.get("run_folder") or header.run_folder)
    if not checkpoint:
        what = "what was written is no longer there" if written else "none was written"
        return _entry("checkpoint", f"{what}; logs are in {folder}")
    if summary.get("state") == "failed" and not summary.get("env_steps"):
        return _entry("checkpoint", f"none worth going on from; logs are in {folder}")
    lines = _entry("checkpoint", str(checkpoint))
    lines += _command("evaluate", f"rltrain eval {folder}")
    if summary.get("reason") not in ("finished", "target"):
        lines += _command("resume", f"rltrain run --resume {folder}")
    return lines


def _that_is_there(written: str | None, run_folder: str) -> str | None:
    """Return the checkpoint that was written last, or where somebody has removed it the furthest of the others."""
    if written is None or Path(written).is_file():
        return written
    return max(map(str, Path(run_folder).glob("checkpoints/checkpoint-*.pt")), default=None)


def _entry(label: str, text: str) -> list[str]:
    # Paths stay whole, so that they can be copied: a long one may stick out.
    indent = " " * (_LABEL + 2)
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=f"  {label:<{_LABEL}}", subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )
    return [line.replace(_JOINED, " ") for line in lines]


def _command(label: str, command: str) -> list[str]:
    return [f"  {label:<{_LABEL}}{command}"]
