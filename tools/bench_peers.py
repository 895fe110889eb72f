#!/usr/bin/env python
"""Measure rltrain beside other libraries on the same work, each driven through its own public interface.

    python tools/bench_peers.py [--quick] [--turns N] [--only NAME ...] [--venvs DIR] [--json FILE] [--html FILE]

Works: `cartpole` (env steps learned a second), `threshold` (seconds from process start to a mean return of 475),
`pong` (decisions learned a second), `start` (seconds to the first update, memory). Peers: `stable-baselines3`,
`sample-factory`, `pufferlib`, `rllib`. `--only` takes either and may be given several times.

Each peer is installed with pip into an environment of its own under `--venvs`, once; what does not install is named and
left out. Each is measured at the fastest of the settings in `tools/peers/libraries.py`, then all take turns with
rltrain. Takes an hour and a half on two cores; `--quick`, one short turn of the first setting, about ten minutes.
Ctrl-C prints what was measured so far. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a source tree that is not installed
from rltrain.bench.record import record
from rltrain.bench.report import as_json, lines_of
from rltrain.cli.outputs import check_outputs, progress, write
from rltrain.config.machine import usable_cores
from rltrain.errors import RltrainError
from tools.peers.bench import WORKS, PeersBench, Plan
from tools.peers.drive import Job, Measured, drive, drive_rltrain
from tools.peers.libraries import PEERS, Options, Side, cartpole_sides, pong_sides, tuned_sides
from tools.peers.venvs import InstallError, Venv, install

INSTALL_LIMIT_S = 600


def selected(only: list[str], cores: int) -> dict[str, list[Side]]:
    """Return work -> sides, of the works and peers that are asked for; rltrain takes part in any case."""
    works = [name for name in WORKS if name in only] or list(WORKS)
    peers = [name for name in PEERS if name in only] or list(PEERS)
    makers = {"cartpole": cartpole_sides, "pong": pong_sides, "threshold": tuned_sides, "start": tuned_sides}
    return {work: [side for side in makers[work](cores) if side.peer in (None, *peers)] for work in works}


def prepared(folder: Path, names: set[str]) -> tuple[dict[str, Venv], dict[str, str], list[str]]:
    """Install the peers; returns what is there, why others are not, and what to say about either."""
    venvs: dict[str, Venv] = {}
    missing: dict[str, str] = {}
    notes: list[str] = []
    for name in [name for name in PEERS if name in names]:
        try:
            venvs[name] = install(folder / name, PEERS[name].ways, INSTALL_LIMIT_S, lambda what: _say(what))
        except InstallError as error:
            missing[name] = str(error)
            notes.append(f"{name} is not installed: {error}")
            continue
        notes += [f"{name}, installed otherwise: {reason}" for reason in venvs[name].failed]
    return venvs, missing, notes


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def versions(venvs: dict[str, Venv]) -> dict[str, str]:
    """Return the version of each peer, with those of Gymnasium and NumPy that it runs on."""
    found = {}
    for name, venv in venvs.items():
        package = next(package for package in PEERS[name].packages if package in venv.versions)
        below = ", ".join(f"{part} {venv.versions[part]}" for part in ("gymnasium", "numpy") if part in venv.versions)
        found[package] = f"{venv.versions[package]} ({below})"
    return found


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short turn of each side's first setting")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each side, and seeds to the return")
    parser.add_argument("--only", action="append", default=[], choices=[*WORKS, *PEERS], metavar="NAME")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache/rltrain/peers", metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every value to this file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with pictures")
    args = parser.parse_args()
    try:
        check_outputs(args.json, args.html)
    except RltrainError as error:
        parser.error(str(error))
    plan = Plan.quick() if args.quick else Plan()
    if args.turns is not None:
        if args.turns < 1:
            parser.error("--turns must be at least 1")
        plan = replace(plan, turns=args.turns, seeds=args.turns)
    return _measure(plan, selected(args.only, usable_cores()), args.venvs, args.json, args.html)


def _measure(
    plan: Plan, sides: dict[str, list[Side]], folder: Path, json_file: Path | None, html_file: Path | None
) -> int:
    names = {side.peer for taking in sides.values() for side in taking if side.peer is not None}
    venvs, missing, notes = prepared(folder.expanduser().absolute(), names)

    def measure(side: Side, job: Job, options: Options, is_watched: bool) -> Measured:
        if side.peer is None:
            return drive_rltrain(job, options, is_watched)
        return drive(venvs[side.peer].python, PEERS[side.peer].driver, job, options, is_watched)

    for side in (side for taking in sides.values() for side in taking if side.package is not None):
        if side.peer in venvs and side.package not in venvs[side.peer].versions:
            missing[side.label] = f"needs the distribution {side.package}"

    said = record(("torch", "gymnasium", "ale-py"))
    said["command"] = shlex.join(["python", "tools/bench_peers.py", *sys.argv[1:]])
    said["versions"] = {**dict(said["versions"]), **versions(venvs)}  # type: ignore[call-overload]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what runs is ended, not left behind
    bench = PeersBench(sides, plan, measure, missing, notes)
    code = 0
    with progress() as tell:
        try:
            bench.run(tell)
        except KeyboardInterrupt:
            code = 130
    report = bench.report(said)
    if code:
        report.is_complete = False
        report.notes.append("interrupted: this is what was measured until then")
    print("\n".join(lines_of(report)))
    if json_file is not None:
        write(json_file, json.dumps(as_json(report), indent=1))
    if html_file is not None:
        from rltrain.bench.page import page_of

        write(html_file, page_of(report))
    return code


if __name__ == "__main__":
    sys.exit(main())
