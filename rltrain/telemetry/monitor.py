"""What the supervisor tells the outside world of a run: display, TensorBoard, closing summary.

Called by the supervisor once a second and for each message; the only place where samples, verdict and curves meet.
Nothing in here ends a run: what fails is logged with its traceback, told once, and done without.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rltrain.config.load import LoadedConfig, to_toml
from rltrain.config.machine import usable_cores
from rltrain.fields import EnvSpec
from rltrain.shm.counters import CounterRow
from rltrain.telemetry import curves
from rltrain.telemetry.gpu import GpuMonitor
from rltrain.telemetry.header import RunHeader, notes_of
from rltrain.telemetry.ledger import Ledger
from rltrain.telemetry.plain import Display, PlainLines, choose_display
from rltrain.telemetry.sample import NO_SAMPLE, Sample
from rltrain.telemetry.summary import closing_summary
from rltrain.telemetry.tensorboard import TensorboardWriter
from rltrain.telemetry.verdict import Verdict, judge, judge_whole, silence

log = logging.getLogger(__name__)
MAX_WARNINGS = 50
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)
"""What writing to a terminal that was closed or has hung up fails with."""
LONG_EPISODE_STEPS = 10_000
"""Length of an episode from which on its env is suspected to have no end. The longest limit of Gymnasium's own envs is
2,000; those of ALE play 27,000 decisions at most, and have a limit, so that they are not suspected."""
_T = TypeVar("_T")


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
        self.endless: str | None = None
        """The env's id where it has no time limit, until a long episode was warned of."""
        self._failed: set[str] = set()

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
            config.run.total_env_steps, config.run.target_return, device, notes_of(config, spec),
            config.run.target_window, env_steps,
            config.replay.capacity if config.algo.chosen.source == "replay" else None,
        )
        self.folder = folder
        self.endless = spec.env_id if spec.max_episode_steps is None else None
        self._open_writer(env_steps if resumed else None)
        plain: Display = PlainLines(sys.stdout, self.header)
        self.display = self._try("choosing the display", self._choose_display, plain)
        if isinstance(self.display, PlainLines):
            for adjustment in self.loaded.adjustments:  # the command has said it above
                self.warnings.remove(adjustment)
        self._show(lambda display: display.start())

    def _choose_display(self) -> Display:
        return choose_display(sys.stdout, self.header, self.wants_dashboard)

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

    def tick(self, phase: str = "training", is_learner_exempt: bool = False) -> None:
        """Take a sample and show it; about once a second. The learner's silence may be exempt, see `silence`."""
        sample = self._try("taking a sample", lambda: self._seen(self.ledger.sample()), None)
        if sample is not None:
            self.sample = sample
            self.is_sample_written = False
            for name, counts in sample.histograms.items():
                self.histograms[name] = self.histograms.get(name, 0) + counts
            self._warn_of_long_episode(sample)
        verdict = self._try("the verdict", lambda: self._judge(is_learner_exempt), None)
        self._show(lambda display: display.update(self.sample, verdict, list(self.warnings), phase))

    def _judge(self, is_learner_exempt: bool) -> Verdict:
        window = self.ledger.window()
        return silence(window, is_learner_exempt) or judge(window, self.config.pipeline.schedule, cores=self.cores)

    def _warn_of_long_episode(self, sample: Sample) -> None:
        if self.endless is not None and sample.longest_open_steps >= LONG_EPISODE_STEPS:
            self.warn(
                f"an episode runs for {sample.longest_open_steps:,} env steps, and {self.endless} has no time limit "
                "that rltrain knows of. If it may go on for ever, set env.max_episode_steps: its end is then a "
                "truncation."
            )
            self.endless = None

    def _seen(self, sample: Sample) -> Sample:
        self.rss_bytes |= {process.name: process.rss_bytes for process in sample.processes if process.rss_bytes}
        return sample

    def warn(self, text: str) -> None:
        """Show a warning and log it."""
        log.warning("%s", text)
        self.warnings.append(text)

    def write_metrics(self, values: dict[str, float], env_steps: int) -> None:
        """Write the learner's or the evaluator's figures at this place of the axis, and the latest sample beside."""
        self._try("writing curves", lambda: self._write_metrics(values, env_steps), None)

    def _write_metrics(self, values: dict[str, float], env_steps: int) -> None:
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
        display = self.display
        assert display is not None, "start comes first"
        if isinstance(display, PlainLines):
            return self._try("showing the run", lambda: draw(display), None)
        try:
            draw(display)
        except Exception as error:
            is_gone = isinstance(error, OSError) and error.errno in _GONE
            self.stop()
            self.display = PlainLines(sys.stdout, self.header)
            if is_gone:
                log.info("the terminal is gone: %s", error)
            else:
                log.exception("the dashboard failed")
                self.warn(f"the dashboard failed ({_in_words(error)}); going on with plain lines")
        return None

    def _try(self, what: str, do: Callable[[], _T], otherwise: _T) -> _T:
        """Return what `do` returns, or `otherwise` where it fails, which is logged and told the first time."""
        try:
            return do()
        except Exception as error:
            if what not in self._failed:
                self._failed.add(what)
                log.exception("%s failed", what)
                self.warn(f"{what} failed ({_in_words(error)}); the run goes on without")
            return otherwise

    # -- the end ----------------------------------------------------------------------------------------------

    def total(self) -> Sample:
        """Return the sample of the whole run."""
        last = self.sample or NO_SAMPLE
        return self._try("adding up the whole run", lambda: self._seen(self.ledger.total()), last)

    def finish(self, summary: dict[str, Any], total: Sample) -> None:
        """Show the last state, write the final figures, and print the closing summary."""
        has_failed = summary["state"] == "failed"
        schedule = self.config.pipeline.schedule
        verdict = self._try("the verdict", lambda: judge_whole(total, schedule, has_failed, self.cores), None)
        self.verdict = verdict
        last = self._try("taking the last sample", lambda: self._last(total), total)
        self._warn_of_long_episode(last)
        shown = None if has_failed else verdict
        self._show(lambda display: display.update(last, shown, list(self.warnings), summary["state"], is_last=True))
        self.stop()
        self._try("writing the final figures", lambda: self._write_final(summary, total), None)
        plainly = f"{summary['state']}: {summary['run_folder']}\n"
        text = self._try("the closing summary", lambda: closing_summary(summary, total, verdict, self.header), plainly)
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError):
            pass

    def _write_final(self, summary: dict[str, Any], total: Sample) -> None:
        if self.writer is None:
            return
        final = {
            "final/return_mean": summary.get("return_mean"),
            "final/env_steps": summary["env_steps"],
            "final/env_steps_per_s": total.env_steps_per_s,
            "final/duration_s": summary["duration_s"],
        }
        known = {name: value for name, value in final.items() if value is not None and value == value}
        if self.verdict is not None:
            self.writer.text("run/verdict", self.verdict.line, summary["env_steps"])
        self.writer.hparams(known, summary["env_steps"], succeeded=summary["exit_code"] == 0)

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
            "device": self.header.device,
            "inference_device": self._inference_device,
            "verdict": self.verdict.line if self.verdict else None,
            "ledger": {process.name: process.shares for process in total.processes},
            "rss_bytes": {process.name: self.rss_bytes.get(process.name) for process in total.processes},
            "policy_lag_p50_versions": total.policy_lag_p50,
            "policy_lag_p99_versions": total.policy_lag_p99,
            "batch_size_mean_rows": total.batch_size_mean_rows,
            "dropped_env_steps": total.dropped_env_steps,
            "overwritten_fragments": total.overwritten_fragments,
            "bad_updates": total.bad_updates,
            "replay_transitions": total.replay_transitions,
        }

    @property
    def _inference_device(self) -> str:
        """Where actions are computed, by the server or by the actors themselves."""
        pipeline = self.config.pipeline
        if pipeline.inference == "local":
            return "cpu"
        return self.header.device if pipeline.inference_device == "auto" else pipeline.inference_device

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


def _in_words(error: Exception) -> str:
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
