"""What the dashboard says, line by line: pure functions from a sample to spans of text with a style name.

A line is a list of (text, style); no line depends on the terminal but for its width and its characters.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

from rltrain.telemetry.figures import count, decimal, delays, duration, mebibytes, one_line, percent, replay_fill
from rltrain.telemetry.glyphs import KINDS, Glyphs, kind_of
from rltrain.telemetry.gpu import GpuSample
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.sample import ProcessSample, Sample
from rltrain.telemetry.verdict import Verdict

Line = list[tuple[str, str]]

_LABEL = 11
_USAGE = 17
"""Width of the columns of CPU use and memory."""
_STATES = 72
"""Width in which the names and shares of a process's states fit; a wide terminal's bars take the rest."""
_HISTORY = 240


@dataclass
class History:
    """What sparklines and the time left are made of: the last points, one for each sample."""

    env_steps_per_s: list[float] = field(default_factory=list)
    return_mean: list[float] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Append one sample's figures."""
        self.env_steps_per_s.append(sample.env_steps_per_s)
        if sample.return_mean is not None:
            self.return_mean.append(sample.return_mean)
        del self.env_steps_per_s[:-_HISTORY], self.return_mean[:-_HISTORY]

    def recent_env_steps_per_s(self) -> float:
        """Return the mean speed of the last ten samples."""
        last = self.env_steps_per_s[-10:]
        return sum(last) / len(last) if last else 0.0


def title(header: RunHeader, phase: str) -> Line:
    """Name the run and what it is doing."""
    facts = f"  {header.env_id}  {header.algo}  {header.schedule}  {header.device}  "
    return [("rltrain ", "bold"), (header.name, "bold"), (facts, ""), (phase, "bold")]


def progress(
    header: RunHeader, sample: Sample | None, history: History, glyphs: Glyphs, width: int, is_last: bool = False
) -> Line:
    """Show how much is done and, until the end, how long the rest takes at the present speed."""
    done = sample.env_steps if sample else 0
    speed = history.recent_env_steps_per_s()
    left_s = max(0, header.total_env_steps - done) / speed if speed else None
    share = done / header.total_env_steps
    elapsed = duration(sample.time_s) if sample else "-"
    text = f" {percent(share)}  {count(done)} / {count(header.total_env_steps)} env steps"
    times = f"  {elapsed}" if is_last else f"  {elapsed}, {duration(left_s)} left"
    return [(glyphs.progress(share, max(8, width - len(text) - len(times))), "compute"), (text, ""), (times, "")]


def speed(header: RunHeader, sample: Sample) -> Line:
    """Show the main figures."""
    target = "" if header.target_return is None else f" (target {header.target_return:g})"
    running = f", one runs for {count(sample.longest_open_steps)}" if sample.has_long_episode else ""
    return [
        (count(sample.env_steps_per_s), "bold"), (" env steps/s  ", ""),
        (decimal(sample.updates_per_s), "bold"), (" updates/s  return ", ""),
        (decimal(sample.return_mean), "bold"), (target, ""),
        (f"  length {count(sample.episode_length_mean_steps)}{running}", ""),
    ]


def sparklines(history: History, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw return and speed since about four minutes."""
    curves = (("return", history.return_mean), ("steps/s", history.env_steps_per_s))
    lines: list[Line] = []
    for label, values in curves:
        line = glyphs.sparkline(values, width - _LABEL - 24)
        bounds = f" {decimal(min(values))} to {decimal(max(values))}" if values else " -"
        lines.append([(f"{label:<{_LABEL}}", ""), (line, "compute"), (bounds, "")])
    return lines


def legend(glyphs: Glyphs, width: int) -> Line:
    """Explain the bars, and head the columns at the right."""
    line: Line = [("time by state  ", "bold")]
    for kind in KINDS:
        line += [(glyphs.fill[kind], kind), (f" {kind}  ", "")]
    used = sum(len(text) for text, _ in line)
    return [*line, (f"{'CPU':>7}{'memory':>{_USAGE - 7}}".rjust(max(0, width - used)), "dim")]


def processes(sample: Sample, glyphs: Glyphs, width: int, max_lines: int) -> list[Line]:
    """Draw the idle ledger: a line for each process, or for each role where there are too many."""
    if len(sample.processes) <= max_lines:
        rows = [(p.name, p.shares, [p]) for p in sample.processes]
    else:
        rows = []
        for role in dict.fromkeys(p.role for p in sample.processes):
            members = [p for p in sample.processes if p.role == role]
            label = members[0].name if len(members) == 1 else f"{len(members)} {role}s"
            rows.append((label, sample.role_shares(role), members))
    return [_process(label, shares, members, glyphs, width) for label, shares, members in rows]


def _process(label: str, shares: dict[str, float], members: list[ProcessSample], glyphs: Glyphs, width: int) -> Line:
    kinds: dict[str, float] = {}
    for state, share in shares.items():
        kinds[kind_of(state)] = kinds.get(kind_of(state), 0.0) + share
    bar_width = _bar_width(width)
    bar = [(text, kind) for text, kind in glyphs.stacked(kinds, bar_width)] if shares else [("ended", "bold")]
    padding = " " * (bar_width - sum(len(text) for text, _ in bar) + 1)
    usage = f" {_cpu(members)} {_memory(members)}"
    room = width - _LABEL - bar_width - len(usage) - 1
    largest = sorted((item for item in shares.items() if item[1] >= 0.005), key=lambda item: -item[1])
    named = ""
    for state, share in largest:
        entry = f"{state} {percent(share)} "
        if len(named) + len(entry) > room:
            break
        named += entry
    named = f"{named:<{max(0, room)}}"
    return [(f"{label:<{_LABEL}.{_LABEL - 1}}", ""), *bar, (padding, ""), (named, ""), (usage, "dim")]


def _bar_width(width: int) -> int:
    return max(10, width // 5, width - _LABEL - _STATES - _USAGE - 1)


def _cpu(members: list[ProcessSample]) -> str:
    known = [p.cpu_percent for p in members if p.cpu_percent is not None]
    return f"{sum(known):4.0f} %" if known else "     -"


def _memory(members: list[ProcessSample]) -> str:
    known = [p.rss_bytes for p in members if p.rss_bytes is not None]
    return f"{mebibytes(sum(known)) if known else '-':>9}"


def ring(sample: Sample, glyphs: Glyphs, width: int) -> Line:
    """Show how full the trajectory ring is."""
    slots = sum(sample.ring.values())
    used = slots - sample.ring.get("free", 0)
    states = "  ".join(f"{state} {count(n)}" for state, n in sample.ring.items())
    bar = glyphs.progress(used / slots if slots else 0.0, _bar_width(width))
    return [(f"{'ring':<{_LABEL}}", ""), (bar, "copy"), (f" {states}", "")]


def inference(sample: Sample) -> Line:
    """Show batches and delays of the inference server."""
    if sample.batch_size_mean_rows is None:
        return [(f"{'batches':<{_LABEL}}none lately, or each actor runs the policy itself", "")]
    queue = delays(sample.queue_delay_us_p50, sample.queue_delay_us_p95, sample.queue_delay_us_p99)
    service = delays(sample.service_us_p50, sample.service_us_p95)
    rows = decimal(sample.batch_size_mean_rows)
    return [(f"{'batches':<{_LABEL}}{rows} rows  queue p50/95/99 {queue}  service {service}", "")]


def lag(sample: Sample) -> Line:
    """Show policy lag and what went wrong."""
    lags = f"p50 {count(sample.policy_lag_p50)}  p99 {count(sample.policy_lag_p99)}"
    losses = f"dropped {count(sample.dropped_env_steps)}   bad updates {sample.bad_updates}"
    if sample.overwritten_fragments:
        losses = f"overwritten {count(sample.overwritten_fragments)}   {losses}"
    return [(f"{'policy lag':<{_LABEL}}{lags}   {losses}   restarts {sample.restarts}", "")]


def replay(sample: Sample, header: RunHeader) -> list[Line]:
    """Show how full the replay is and the ratio that was reached; nothing without one."""
    if sample.replay_transitions is None or header.replay_capacity is None:
        return []
    fill = replay_fill(sample.replay_transitions, header.replay_capacity).removeprefix("replay ")
    ratio = f"{decimal(sample.updates_per_env_step)} updates per env step"
    drawing = f"drawing takes {percent(sample.sample_share or 0.0)} of the time"
    return [[(f"{'replay':<{_LABEL}}{fill} of {count(header.replay_capacity)}   {ratio}   {drawing}", "")]]


def gpus(sample: Sample, max_lines: int) -> list[Line]:
    """Show each GPU, or the processes' CPU use where there is none."""
    if not sample.gpus:
        roles = dict.fromkeys(p.role for p in sample.processes)
        use = "  ".join(f"{role} {_cpu([p for p in sample.processes if p.role == role]).strip()}" for role in roles)
        return [[(f"{'no GPU':<{_LABEL}}CPU: {use}", "")]]
    lines = [[(f"{f'GPU {gpu.index}':<{_LABEL}}{_gpu(gpu)}", "")] for gpu in sample.gpus[:max_lines]]
    if len(sample.gpus) > max_lines:
        lines[-1][0] = (f"{lines[-1][0][0]}  (+{len(sample.gpus) - max_lines})", "")
    return lines


def _gpu(gpu: GpuSample) -> str:
    """Only figures that the driver gave."""
    parts = [gpu.name.removeprefix("NVIDIA ")[:20]]
    if gpu.utilisation_percent is not None:
        parts.append(f"{gpu.utilisation_percent:.0f} % in use")
    if gpu.memory_used_bytes is not None:
        parts.append(f"memory {mebibytes(gpu.memory_used_bytes)} of {mebibytes(gpu.memory_total_bytes)}")
    if gpu.power_w is not None:
        limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
        parts.append(f"{gpu.power_w:.0f}{limit} W")
    return "  ".join(parts)


def verdict(judged: Verdict | None, width: int) -> list[Line]:
    """Show the verdict: the name with its evidence, and what to change; two lines each where they are long."""
    if judged is None:
        return []
    named, *more = textwrap.wrap(judged.finding, width)[:2]
    lines: list[Line] = [[(judged.name, "verdict"), (named.removeprefix(judged.name), "")]]
    if judged.advice:
        runner_up = f" (next: {judged.runner_up})" if judged.runner_up else ""
        more += textwrap.wrap(f"try: {judged.advice}{runner_up}", width)[:2]
    return [*lines, *([(text, "")] for text in more)]


def warnings(messages: list[str], width: int, max_lines: int) -> list[Line]:
    """Show the last warnings, the newest at the bottom and whole where there is room."""
    lines: list[Line] = []
    for message in reversed(messages):
        wrapped = textwrap.wrap(
            one_line(message), width, initial_indent="! ", subsequent_indent="  ", break_on_hyphens=False
        )
        if lines and len(lines) + len(wrapped) > max_lines:
            break
        lines = [[(text, "warning")] for text in wrapped[:max_lines]] + lines
    return lines
