"""What the supervisor tells the outside world of a run: display, TensorBoard, closing summary.

Called by the supervisor once a second and for each message; the only place where samples, verdict and curves meet.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rltrain.config.load import LoadedConfig, to_toml
from rltrain.config.machine import usable_cores
from rltrain.fields import EnvSpec
from rltrain.shm.counters import CounterRow
from rltrain.telemetry import curves
from rltrain.telemetry.gpu import GpuMonitor
from rltrain.telemetry.header import RunHeader
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.plain import Display, PlainLines, choose_display
from rltrain.telemetry.sample import Sample
from rltrain.telemetry.summary import closing_summary
from rltrain.telemetry.tensorboard import TensorboardWriter
from rltrain.telemetry.verdict import Verdict, judge, judge_whole

log = logging.getLogger(__name__)
MAX_WARNINGS = 50


class Monitor:
    """Everything that is shown and written of one run.

    Args:
        loaded: the configuration.
        dashboard: whether a live dashboard is wanted.
    """

    def __init__(self, loaded: LoadedConfig, dashboard: bool):
        self.loaded, self.config = loaded, loaded.config
        self.wants_dashboard = dashboard
        self.warnings: deque[str] = deque(loaded.adjustments, maxlen=MAX_WARNINGS)
        self.display: Display | None = None
        self.ledger: Ledger
        self.writer: TensorboardWriter | None = None
        self.gpus = GpuMonitor()
        self.cores = usable_cores()
        self.verdict: Verdict | None = None
        """On the whole run, once it has ended."""
        self.rss_bytes: dict[str, int] = {}
        """Of each process, when it was last seen alive."""
        self.sample: Sample | None = None
        self.is_sample_written = True
        self.histograms: dict[str, np.ndarray] = {}
        self.header: RunHeader

    def start(
        self, folder: Path, spec: EnvSpec, rows: list[tuple[str, CounterRow]],
        ring_states: Callable[[], dict[str, int]], overwritten: Callable[[], int], resumed: tuple[int, int] | None,
        device: str,
    ) -> None:
        """Begin to show and to write.

        Args:
            folder: the run folder.
            spec: what the env is.
            rows: name and counter row of every process.
            ring_states: how many slots are in which state.
            overwritten: how many fragments were thrown away unread.
            resumed: env steps and updates that a resumed run starts with, None for a new run.
            device: where the learner trains.
        """
        config = self.config
        env_steps, updates = resumed or (0, 0)
        self.ledger = Ledger(rows, ring_states, self.gpus, env_steps, updates, overwritten)
        self.header = RunHeader(
            config.run.name, spec.env_id, config.algo.name, config.pipeline.schedule, os.path.relpath(folder),
            config.run.total_env_steps, config.run.target_return, device, self._notes(spec), config.run.target_window,
            env_steps,
        )
        self.folder = folder
        self._open_writer(env_steps if resumed else None)
        self.display = choose_display(sys.stdout, self.header, self.wants_dashboard)
        self._show(lambda display: display.start())

    def go_back(self, env_steps: int) -> None:
        """The run goes on from these earlier env steps: curves beyond them do not hold any more."""
        if self.writer is not None:
            self.writer.close()
            self._open_writer(env_steps)

    def _open_writer(self, purge_step: int | None) -> None:
        config = self.config
        if config.log.tensorboard:
            self.writer = TensorboardWriter(
                self.folder / "tensorboard", to_toml(config), config.model_dump(mode="json"),
                purge_step=purge_step, on_warning=self.warn,
            )

    def _notes(self, spec: EnvSpec) -> tuple[str, ...]:
        config = self.config
        actors = int(config.actors.num_actors)
        lanes = actors * config.actors.groups_per_actor
        stepping = "its own vector implementation" if spec.is_native else "single envs"
        note = (
            f"{actors} actor{'s' if actors > 1 else ''} x {config.actors.groups_per_actor} groups x "
            f"{config.actors.envs_per_group} envs ({stepping}), {lanes} lanes; "
            f"threads: learner {config.learner.num_threads}, others 1"
        )
        if config.pipeline.schedule == "async":
            return note, "schedule async: this run is not reproducible"
        return (note,)

    # -- while the run goes on --------------------------------------------------------------------------------

    def tick(self, phase: str = "training") -> None:
        """Take a sample and show it; about once a second."""
        self.sample = self._seen(self.ledger.sample())
        self.is_sample_written = False
        for name, counts in self.sample.histograms.items():
            self.histograms[name] = self.histograms.get(name, 0) + counts
        verdict = judge(self.ledger.window(), self.config.pipeline.schedule, cores=self.cores)
        self._show(lambda display: display.update(self.sample, verdict, list(self.warnings), phase))

    def _seen(self, sample: Sample) -> Sample:
        self.rss_bytes |= {process.name: process.rss_bytes for process in sample.processes if process.rss_bytes}
        return sample

    def warn(self, text: str) -> None:
        """Show a warning and log it."""
        log.warning("%s", text)
        self.warnings.append(text)

    def write_metrics(self, values: dict[str, float], env_steps: int) -> None:
        """Write the learner's or the evaluator's figures at this place of the axis, and the latest sample beside."""
        if self.writer is None:
            return
        self.writer.scalars(values, env_steps)
        if self.sample is not None and not self.is_sample_written:
            self.is_sample_written = True
            self.writer.scalars(curves.scalars(self.sample), env_steps)
            for name, counts in self.histograms.items():
                self.writer.histogram(name, counts, env_steps)
            self.histograms = {}

    def _show(self, draw: Callable[[Display], None]) -> None:
        """Draw; a dashboard that fails gives way to plain lines, and the run goes on."""
        assert self.display is not None, "start comes first"
        try:
            draw(self.display)
        except Exception as error:
            log.exception("the display failed")
            self.stop()
            self.display = PlainLines(sys.stdout, self.header)
            self.warn(f"the dashboard failed ({type(error).__name__}: {error}); going on with plain lines")

    # -- the end ----------------------------------------------------------------------------------------------

    def total(self) -> Sample:
        """Return the sample of the whole run."""
        return self._seen(self.ledger.total())

    def finish(self, summary: dict[str, Any], total: Sample) -> None:
        """Show the last state, write the final figures, and print the closing summary."""
        has_failed = summary["state"] == "failed"
        verdict = self.verdict = judge_whole(total, self.config.pipeline.schedule, has_failed, self.cores)
        last = self._last(total)
        shown = None if has_failed else verdict
        self._show(lambda display: display.update(last, shown, list(self.warnings), summary["state"], is_last=True))
        self.stop()
        if self.writer is not None:
            final = {
                "final/return_mean": summary.get("return_mean"),
                "final/env_steps": summary["env_steps"],
                "final/env_steps_per_s": total.env_steps_per_s,
                "final/duration_s": summary["duration_s"],
            }
            known = {name: value for name, value in final.items() if value is not None and value == value}
            self.writer.text("run/verdict", verdict.line, summary["env_steps"])
            self.writer.hparams(known, summary["env_steps"], succeeded=summary["exit_code"] == 0)
        text = closing_summary(summary, total, verdict, self.header)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass

    def _last(self, total: Sample) -> Sample:
        """The whole run's speeds and shares with the counts as they are now that every process has ended."""
        now = self._seen(self.ledger.sample())
        return replace(
            total, env_steps=now.env_steps, updates=now.updates, policy_version=now.policy_version,
            return_mean=now.return_mean, episode_length_mean_steps=now.episode_length_mean_steps,
            episodes=now.episodes, dropped_env_steps=now.dropped_env_steps, bad_updates=now.bad_updates,
        )

    def summary_figures(self, total: Sample) -> dict[str, Any]:
        """Return what `summary.json` keeps of the ledger; after `finish`."""
        return {
            "env_steps_per_s": total.env_steps_per_s,
            "verdict": self.verdict.line if self.verdict else None,
            "ledger": {process.name: process.shares for process in total.processes},
            "rss_bytes": {process.name: self.rss_bytes.get(process.name) for process in total.processes},
            "policy_lag_p50_versions": total.policy_lag_p50,
            "policy_lag_p99_versions": total.policy_lag_p99,
            "batch_size_mean_rows": total.batch_size_mean_rows,
            "dropped_env_steps": total.dropped_env_steps,
            "overwritten_fragments": total.overwritten_fragments,
            "bad_updates": total.bad_updates,
        }

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self.display is not None:
            try:
                self.display.stop()
            except Exception:
                log.exception("the display could not be stopped")

    def close(self) -> None:
        """Write out what is queued."""
        if self.writer is not None:
            self.writer.close()
        self.gpus.close()
