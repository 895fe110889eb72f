"""`rltrain tune`: find the sizes with which a configuration learns most env steps a second on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rltrain.cli.outputs import check_outputs, progress, write


@click.command("tune")
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
              help="Set one option over the file's value; may be given several times.")
@click.option("--seconds", type=click.FloatRange(min=10), default=120.0, show_default=True,
              help="For all probes together.")
@click.option("--max-policy-lag", type=click.IntRange(min=0), metavar="N",
              help="Keep no setting in which env steps are learned more versions late (99th percentile).")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Where the tuned configuration goes. Default: CONFIG with `.tuned.toml`, beside it.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Also write every probe, and what it was measured on, to this file.")
def command(
    config: Path, overrides: tuple[str, ...], seconds: float, max_policy_lag: int | None, out: Path | None, force: bool,
    json_file: Path | None,
) -> int:
    """Probe CONFIG in short runs for the sizes that are fastest here.

    Envs per group, groups, actors, where the policy runs, threads of the learner: one thing is changed at a time, and
    kept where it gains. More envs make larger batches for each version of the weights: a tuned configuration learns
    more env steps a second, and may need other learning rates.

    \b
    Example:
      rltrain tune configs/cartpole.toml
      rltrain tune my.toml --seconds 300 --max-policy-lag 4
    """
    from rltrain.bench.record import record
    from rltrain.bench.trial import parse_overrides
    from rltrain.bench.tune import Tuner, named
    from rltrain.errors import ConfigError

    target = out or config.with_name(f"{config.stem}.tuned.toml")
    if target.exists() and not force:
        raise ConfigError(f"{str(target)!r} is there already. Give --force to write over it, or another --out.")
    check_outputs(json_file, None)
    said = record(("torch",))
    tuner = Tuner(config, parse_overrides(overrides), seconds, max_policy_lag, click.echo)
    is_complete = False
    with progress() as tell:
        try:
            tuner.run(tell)
            is_complete = True
        except KeyboardInterrupt:
            click.echo("interrupted: the best so far counts")
    best, before = tuner.rate(tuner.search.best), tuner.rate(tuner.start)
    if json_file is not None:
        write(json_file, json.dumps(tuner.as_json(said), indent=1))
    if best is None:
        if not is_complete:
            raise KeyboardInterrupt
        raise ConfigError("no probe came to its end; the lines above say why.")
    gain = f", {best / before:.2f} x {before:,.0f} at the start" if before else ""
    click.echo(f"best: {named(tuner.search.best)}: {best:,.0f} env steps/s{gain}")
    if tuner.search.best == tuner.start:
        click.echo("the start was the best: nothing is written")
    else:
        write(target, tuner.tuned_text())
        click.echo(f"written: {target}; rltrain run {target}")
    if not is_complete:
        raise KeyboardInterrupt
    return 0
