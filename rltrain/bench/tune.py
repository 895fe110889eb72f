"""`rltrain tune`: probes a configuration in short runs, as `bench/search.py` proposes, and writes the best one down."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rltrain.bench.search import Probe, Proposal, Search, Setting
from rltrain.bench.suite import Tell
from rltrain.bench.trial import BOOT_S, TrialError, as_options, run_trial
from rltrain.config.dump import to_toml, toml_value
from rltrain.config.load import load
from rltrain.config.machine import usable_cores
from rltrain.config.schema import Config
from rltrain.errors import ConfigError, RltrainError

PROBE_S = 4.0
"""Training in one probe."""
OPTIONS = {
    "num_actors": "actors.num_actors", "envs_per_group": "actors.envs_per_group",
    "groups_per_actor": "actors.groups_per_actor", "inference": "pipeline.inference",
    "num_threads": "learner.num_threads",
}  # fmt: skip
_SIZED = {"pipeline.num_slots": "auto", "pipeline.max_batch_size": "auto"}
"""What follows from the number of envs."""


class Tuner:
    """Tunes one configuration.

    Args:
        config: TOML file.
        overrides: option path -> value, over the file's; what is tuned begins with these.
        seconds: for all probes.
        max_policy_lag: most versions between collecting and learning (99th percentile); None leaves it to the schedule.
        say: told of each probe in a line.

    Raises:
        ConfigError: the configuration is wrong.
    """

    def __init__(
        self, config: Path, overrides: Mapping[str, object], seconds: float, max_policy_lag: int | None,
        say: Callable[[str], None],
    ):
        self.path, self.overrides, self.seconds, self.max_policy_lag = config, dict(overrides), seconds, max_policy_lag
        self.config = load(config, as_options(overrides)[1::2]).config
        self._say = say
        self.search = Search(setting_of(self.config), usable_cores(), self._problem)
        self.probes: list[tuple[Proposal, Probe, str]] = []
        self.start = self.search.best

    def run(self, tell: Tell) -> None:
        """Probe until nothing more could help or the time is over."""
        began = time.monotonic()
        each_s = BOOT_S + PROBE_S
        while (proposal := self.search.proposal) is not None:
            spent = time.monotonic() - began
            if self.probes and spent + each_s > self.seconds:
                self._say(f"the time is over ({self.seconds:g} s); more --seconds may find more")
                return
            tell(spent if self.probes else 0.0, self.seconds, named(proposal.setting))
            probe = self._probe(proposal.setting)
            verdict = self.search.tell(probe)
            self.probes.append((proposal, probe, verdict))
            rate = "-" if probe.rate is None else f"{probe.rate:,.0f}"
            self._say(f"{named(proposal.setting):<52} {rate:>11} env steps/s  {verdict}  ({proposal.reason})")
            each_s = (time.monotonic() - began) / len(self.probes)
        self._say("no change that is left to try would be expected to help")

    def changes(self, setting: Setting) -> dict[str, object]:
        """Return a setting as option path -> value, with what follows from it."""
        options: dict[str, object] = {OPTIONS[name]: value for name, value in asdict(setting).items()}
        return options | {path: value for path, value in _SIZED.items() if path not in self.overrides}

    def rate(self, setting: Setting) -> float | None:
        """Return what a setting did, in env steps learned a second; None where it was not probed or failed."""
        probe = self.search.probes.get(setting)
        return None if probe is None else probe.rate

    def _problem(self, setting: Setting) -> str | None:
        try:
            load(self.path, as_options({**self.overrides, **self.changes(setting)})[1::2])
        except ConfigError as error:
            return str(error)
        return None

    def _probe(self, setting: Setting) -> Probe:
        try:
            trial = run_trial(self.path, {**self.overrides, **self.changes(setting)}, PROBE_S)
        except TrialError as error:
            return Probe(None, problem=f"failed: {str(error).splitlines()[-1]}")
        lag = trial.summary["policy_lag_p99_versions"]
        if self.max_policy_lag is not None and lag is not None and lag > self.max_policy_lag:
            return Probe(None, problem=f"a policy lag of {lag:g} versions is above {self.max_policy_lag}")
        return Probe(trial.env_steps_per_s, trial.share("learner", "update"))

    def as_json(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return every probe, JSON-able."""
        return {
            "record": record,
            "best": self.changes(self.search.best),
            "probes": [
                {**asdict(proposal.setting), "reason": proposal.reason, "env_steps_per_s": probe.rate,
                 "learner_share": probe.learner_share, "verdict": verdict}
                for proposal, probe, verdict in self.probes
            ],
        }  # fmt: skip

    def tuned_text(self) -> str:
        """Return the configuration with the best setting: the file as it was where its lines can be changed."""
        changes = {**self.overrides, **self.changes(self.search.best)}
        wanted = load(self.path, as_options(changes)[1::2]).config
        before, in_file = self.changes(self.start), load(self.path).origins
        fewest = {
            path: value for path, value in changes.items()
            if path in self.overrides or value != before.get(path) or (value == "auto" and in_file[path] == "file")
        }  # fmt: skip
        texts = (with_values(self.path.read_text(), values) for values in (fewest, changes))
        return next((text for text in texts if _is_same(text, wanted, self.path)), to_toml(wanted))


def setting_of(config: Config) -> Setting:
    """Return what is tuned of a resolved configuration."""
    actors, threads = config.actors.num_actors, config.learner.num_threads
    assert actors != "auto", "the configuration is resolved"
    assert threads != "auto", "the configuration is resolved"
    return Setting(
        actors, config.actors.envs_per_group, config.actors.groups_per_actor, config.pipeline.inference, threads
    )


def named(setting: Setting) -> str:
    """Write a setting in a few words."""
    s = setting
    return (
        f"{s.num_actors} x {s.groups_per_actor} x {s.envs_per_group:,} envs, inference {s.inference}, "
        f"{s.num_threads} learner thread{'s' if s.num_threads > 1 else ''}"
    )


def with_values(text: str, values: Mapping[str, object]) -> str:
    """Return a TOML text with other values of some options, its other lines and comments kept.

    Args:
        text: of the file, one `key = value` to a line.
        values: option path -> value.
    """
    lines = text.splitlines()
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        written = f"{key} = {toml_value(value)}"
        heading = re.compile(rf"\[{re.escape(section)}\]\s*(#.*)?")
        header = next((i for i, line in enumerate(lines) if heading.fullmatch(line)), None)
        if header is None:
            lines += ["", f"[{section}]", written]
            continue
        end = next((i for i in range(header + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
        found = [i for i in range(header + 1, end) if re.match(rf"\s*{re.escape(key)}\s*=", lines[i])]
        if not found:
            lines.insert(header + 1, written)
            continue
        lines[found[0]] = written
    return "\n".join(lines) + "\n"


def _is_same(text: str, wanted: Config, path: Path) -> bool:
    """Whether an edited text says what was meant; read from beside the file, as a user will."""
    trial = path.with_name(f".{path.stem}.tuned-check.toml")
    try:
        trial.write_text(text)
        return load(trial).config == wanted
    except (RltrainError, OSError):
        return False
    finally:
        trial.unlink(missing_ok=True)
