"""`rltrain bench`: what the parts and the whole do in a second, beside limits, other loops and other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrain.cli.outputs import check_outputs, output_options, progress, write

if TYPE_CHECKING:
    from rltrain.bench.suite import Suite

CAPACITIES = (100_000, 1_000_000)


@click.group("bench")
def command() -> None:
    """Measure rltrain, beside other libraries and the machine's own limits.

    \b
    Example:
      rltrain bench replay --quick
    """


def _measure(
    make: Callable[[], Suite], json_file: Path | None, html_file: Path | None, packages: tuple[str, ...] = ("torch",)
) -> int:
    """Run a bench with a progress bar and say what came out, also after Ctrl-C."""
    from rltrain.bench.record import record
    from rltrain.bench.report import as_json, lines_of
    from rltrain.errors import ConfigError

    check_outputs(json_file, html_file)
    said = record(packages)
    is_complete = False
    suite = make()
    with progress() as tell:
        try:
            suite.run(tell)
            is_complete = True
        except KeyboardInterrupt:
            pass
    report = suite.report(said)
    if not is_complete:
        report.is_complete = False
        report.notes.append("interrupted: this is what was measured until then")
    click.echo("\n".join(lines_of(report)))
    if is_complete and not any(table.rows for table in report.tables):
        raise ConfigError("nothing could be measured; the notes above say why.")
    if json_file is not None:
        write(json_file, json.dumps(as_json(report), indent=1))
    if html_file is not None:
        from rltrain.bench.page import page_of

        write(html_file, page_of(report))
    if not is_complete:
        raise KeyboardInterrupt
    return 0


@command.command("replay", short_help="Measure the replay: inserts, draws, gathers, memory.")
@click.option("--capacity", "capacities", type=click.IntRange(min=10_000), multiple=True, metavar="N",
              help="Transitions; may be given several times. Default: 100000 and 1000000.")
@output_options
def replay(quick: bool, capacities: tuple[int, ...], json_file: Path | None, html_file: Path | None) -> int:
    """Measure prioritized replay: transitions put in, batches drawn with their update, memory.

    Observations are 8 float32, and stacks of 4 frames of 84 x 84 bytes. Of cpprb, torchrl, tianshou and
    stable-baselines3, those that are installed are measured in turn with rltrain, in the same process. What needs more
    memory than there is, is left out and named. --quick measures small replays. Ctrl-C prints what was measured so far.

    \b
    Example:
      rltrain bench replay --quick
      rltrain bench replay --capacity 10000000 --json replay.json
    """
    from rltrain.bench.replay import Plan, ReplayBench
    from rltrain.bench.replay_peers import PEERS
    from rltrain.errors import ConfigError

    if quick and capacities:
        raise ConfigError("--quick measures small replays only. Use either --quick or --capacity.")
    plan = Plan.quick() if quick else Plan.full(capacities or CAPACITIES)
    return _measure(lambda: ReplayBench(plan), json_file, html_file, (*PEERS, "torch"))


_CONFIG = click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
_SET = click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
                    help="Set one option over the file's value; may be given several times.")


@command.command("roofline", short_help="Measure each stage alone, and how near the pipeline comes to the limit.")
@_CONFIG
@_SET
@output_options
def roofline(
    config: Path, overrides: tuple[str, ...], quick: bool, json_file: Path | None, html_file: Path | None
) -> int:
    """Measure each stage of CONFIG alone on this machine, the limit that follows, and what the pipeline makes of it.

    Stages: env step, policy forward by batch size, update, gathers and copies, weight publication. The limit is what
    the slowest can do by itself and, where they share cores, what these can do in all. Also what the plumbing could
    carry, with an env, a policy and a learner that do nothing.

    \b
    Example:
      rltrain bench roofline configs/cartpole.toml --quick
      rltrain bench roofline configs/pong.toml --html roofline.html
    """
    from rltrain.bench.roofline import Plan, Roofline
    from rltrain.bench.trial import parse_overrides

    plan = Plan.quick() if quick else Plan()
    return _measure(lambda: Roofline(config, parse_overrides(overrides), plan), json_file, html_file)


@command.command("pipeline", short_help="Measure schedules and inference modes beside a conventional loop.")
@_CONFIG
@_SET
@output_options
def pipeline(
    config: Path, overrides: tuple[str, ...], quick: bool, json_file: Path | None, html_file: Path | None
) -> int:
    """Train CONFIG in every way: sync, overlap, async, with inference in a server and in the actors.

    Algorithms with a replay also with prefetch on and off. Beside them a conventional loop: one process that collects,
    learns, and repeats, with the same envs, network and update, at one torch thread and at one for each core. Where
    there is a run.target_return, also the seconds to it, from process start.

    \b
    Example:
      rltrain bench pipeline configs/cartpole.toml --quick
      rltrain bench pipeline configs/halfcheetah.toml --json pipeline.json
    """
    from rltrain.bench.pipeline import PipelineBench, Plan
    from rltrain.bench.trial import parse_overrides

    plan = Plan.quick() if quick else Plan()
    return _measure(lambda: PipelineBench(config, parse_overrides(overrides), plan), json_file, html_file)


@command.command("ring", short_help="Measure the ring: fragments and bytes between two processes.")
@output_options
def ring(quick: bool, json_file: Path | None, html_file: Path | None) -> int:
    """Measure the trajectory ring between two processes.

    Fragments without bytes, and fragments of 64 KiB, 256 KiB and 2 MiB beside
    plain copies of as many bytes, made by two processes at once. Ctrl-C prints
    what was measured so far.

    \b
    Example:
      rltrain bench ring --quick
      rltrain bench ring --html ring.html
    """
    from rltrain.bench.ring import Plan, RingBench

    return _measure(lambda: RingBench(Plan.quick() if quick else Plan()), json_file, html_file, ())


_DEVICE = click.option("--device", default="cpu", show_default=True,
                       help="Where the server runs the policy: auto, cpu, cuda or cuda:N.")


@command.command("batching", short_help="Measure dynamic batching under four loads on the inference server.")
@click.option("--groups", type=click.IntRange(2, 4096), default=16, show_default=True,
              help="Env groups, each with one request in flight at most.")
@click.option("--rows", type=click.IntRange(1, 65_536), default=8, show_default=True, help="Envs of a group.")
@_DEVICE
@output_options
def batching(
    groups: int, rows: int, device: str, quick: bool, json_file: Path | None, html_file: Path | None
) -> int:
    """Measure the inference server and its batches under four loads.

    Env groups that step evenly, or unevenly, and requests that come at a rate of their own: more than it can answer in
    the largest batches, and fewer than it can answer one by one. Beside each other: one request at a time, batches of
    one size, dynamic batching with delays of 0 to 5 ms, and with a delay that adapts. Requests answered, latency, queue
    delay, sizes of batches, why they fired, padding.

    \b
    Example:
      rltrain bench batching --quick
      rltrain bench batching --groups 64 --rows 4 --html batching.html
    """
    from rltrain.bench.batching import BatchingBench, Plan
    from rltrain.bench.serving import Policy

    plan = Plan.quick(groups, rows) if quick else Plan(num_groups=groups, rows=rows)
    return _measure(lambda: BatchingBench(plan, Policy(device=device)), json_file, html_file)


@command.command("weights", short_help="Measure how soon new weights are used.")
@_DEVICE
@output_options
def weights(device: str, quick: bool, json_file: Path | None, html_file: Path | None) -> int:
    """Measure the weight board: from the start of publishing to the first action of the new weights.

    Policies of 10 thousand to 10 million parameters, with an inference server that has nothing else to do, and with
    one that is kept busy by requests.

    \b
    Example:
      rltrain bench weights --quick
      rltrain bench weights --json weights.json
    """
    from rltrain.bench.weights import Plan, WeightsBench

    return _measure(lambda: WeightsBench(Plan.quick() if quick else Plan(), device), json_file, html_file)


@command.command("article", short_help="Try a promise: 30 % faster, busier, sooner there.")
@output_options
def article(quick: bool, json_file: Path | None, html_file: Path | None) -> int:
    """Measure rltrain beside a conventional loop: speed, utilisation, time to a return.

    Two scenarios of an article that promises 30 % more speed, 78 % utilisation instead of 45 %, and convergence 1.5
    times as fast: 2,048 cheap envs, and envs whose steps take 1 to 20 ms. The conventional loop has the same envs,
    network and update in one process, with as many threads as suit it best. Takes about 20 minutes; Ctrl-C prints what
    was measured so far.

    \b
    Example:
      rltrain bench article --quick
      rltrain bench article --json article.json --html article.html
    """
    from rltrain.bench.article import ArticleBench, Plan

    plan = Plan.quick() if quick else Plan()
    return _measure(lambda: ArticleBench(plan), json_file, html_file, ("torch", "gymnasium"))
