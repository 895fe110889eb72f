"""One run of a configuration, as a user would start it, for a few seconds; its summary is the measurement."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrain.bench.command import OverdueError, last_lines, run_to_end
from rltrain.config.dump import toml_value
from rltrain.config.source import parse_value
from rltrain.errors import ConfigError, RltrainError

ENDLESS = 10**12
"""Env steps that no trial comes to."""
BOOT_S = 3.0
"""What a run takes from its start to its first update, and from its last to its end; for the time left."""
ALLOWANCE_S = 300.0
"""Longest time that a run may take beyond the seconds asked for, before it is ended: twice `supervision.boot_timeout_s`
(until all are ready, and until the first update) and a minute for the last update, the checkpoint and the end."""


class TrialError(RltrainError):
    """A trial did not come to its summary."""

    exit_code = 5


@dataclass(frozen=True)
class Trial:
    """How a run went.

    Args:
        summary: the run's `summary.json`.
    """

    summary: dict[str, Any]

    @property
    def env_steps_per_s(self) -> float:
        """Env steps learned a second, from the end of the first update to that of the last."""
        return float(self.summary.get("learned_env_steps_per_s") or self.summary["env_steps_per_s"])

    @property
    def learner_idle_share(self) -> float:
        """Share of its time in which the learner waited for data, from the network or from the replay."""
        ledger = self.summary["ledger"]["learner"]
        return float(ledger["wait_data"] + ledger.get("sample", 0.0))

    @property
    def verdict(self) -> str:
        """What bound."""
        return str(self.summary["verdict"])

    @property
    def has_gpu(self) -> bool:
        """Whether the learner or the inference server ran the policy on a GPU."""
        return not (self.is_learner_on_cpu and self.is_policy_on_cpu)

    @property
    def is_learner_on_cpu(self) -> bool:
        """Whether updates were computed on the CPU."""
        return not str(self.summary.get("device", "cpu")).startswith("cuda")

    @property
    def is_policy_on_cpu(self) -> bool:
        """Whether actions were, by the inference server or by the actors."""
        return not str(self.summary.get("inference_device", "cpu")).startswith("cuda")

    @property
    def device_busy_share(self) -> float:
        """Share of the time in which the device computed, at least: the larger of the learner's and the server's.

        Both often work at once, so that their sum says nothing.
        """
        forward = ("forward", "h2d", "d2h")
        server = sum(self.share("inference", state) for state in forward) or self.share("actor", "forward")
        return max(self.share("learner", "update") + self.share("learner", "h2d"), server)

    def has_role(self, role: str) -> bool:
        """Whether there were processes of a role."""
        return any(name.partition("-")[0] == role for name in self.summary["ledger"])

    def share(self, role: str, state: str) -> float:
        """Share of a state, mean over the processes of a role (`actor`, `inference`, `learner`); 0 without any."""
        rows = [row for name, row in self.summary["ledger"].items() if name.partition("-")[0] == role]
        return sum(float(row.get(state, 0.0)) for row in rows) / len(rows) if rows else 0.0


def run_trial(config: Path, overrides: Mapping[str, object], seconds: float | None, is_endless: bool = True) -> Trial:
    """Run a configuration in processes of its own, without a dashboard, in a folder that is removed afterwards.

    Args:
        config: TOML file.
        overrides: option path -> value, over the file's.
        seconds: ends after that long (`run.time_limit_s`); None where the configuration ends by itself, however long
            that takes.
        is_endless: whether it is to end by the time only.

    Raises:
        TrialError: it failed, or was ended because it was not over `ALLOWANCE_S` after its `seconds`; the message has
            the last lines that it printed.
        KeyboardInterrupt: it was interrupted; the run has ended.
    """
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as folder:
        options: dict[str, object] = {"run.dir": folder, "log.tensorboard": False}
        if is_endless:
            options |= {"run.total_env_steps": ENDLESS, "run.target_return": None}
        if seconds is not None:
            options["run.time_limit_s"] = float(seconds)
        options |= overrides
        command = [sys.executable, "-m", "rltrain", "run", str(config), "--no-dashboard", *as_options(options)]
        try:
            done = run_to_end(command, None if seconds is None else seconds + ALLOWANCE_S)
        except OverdueError as error:
            raise TrialError(
                f"a run of {config} was not over {ALLOWANCE_S:g} s after the {seconds:g} s that were asked for; it has "
                f"been ended:\n{error}"
            ) from error
        found = sorted(Path(folder).glob("*/summary.json"))
        if done.returncode or not found:
            raise TrialError(f"a run of {config} failed with exit code {done.returncode}:\n{last_lines(done)}")
        return Trial(json.loads(found[0].read_text()))


def as_options(overrides: Mapping[str, object]) -> list[str]:
    """Return overrides, option path -> value, as arguments of a command."""
    return [part for path, value in overrides.items() for part in ("--set", f"{path}={toml_value(value)}")]


def parse_overrides(texts: Iterable[str]) -> dict[str, object]:
    """Return `section.key=value` texts of a command line as option path -> value.

    Raises:
        ConfigError: one is not of that form.
    """
    found: dict[str, object] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: accepted is section.key=value, such as --set run.seed=1.")
        found[path.strip()] = parse_value(path.strip(), value.strip())
    return found
