"""The parent process of a run: boots the others, watches them, restarts them, shows what they do, and sums up.

Owns: the decision what a message or a signal means for the run, and how it ends. What follows a death: `recovery.py`.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rltrain import STARTED_S
from rltrain.config.load import LoadedConfig
from rltrain.errors import InternalError, Interrupted, RltrainError, TrainingError
from rltrain.fields import EnvSpec
from rltrain.supervisor.boot import Boot
from rltrain.supervisor.deaths import death_error, last_known, told_error
from rltrain.supervisor.evaluations import Evaluations
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.launcher import Child, Launcher
from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.outcome import end_state, exit_code, stopped_without_learner, summary_of_failed_boot
from rltrain.supervisor.recovery import Recovery
from rltrain.supervisor.roles import plan_roles
from rltrain.supervisor.rundir import RunFolder, check_writable
from rltrain.supervisor.stop_signals import StopSignals
from rltrain.telemetry.monitor import Monitor

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Distance between two looks at heartbeats and two samples of the counters."""


def run(loaded: LoadedConfig, resume: Path | None, dashboard: bool, launcher: Launcher) -> int:
    """Train.

    Args:
        loaded: the configuration.
        resume: folder of the run to continue, or None for a new one.
        dashboard: draw the live dashboard where the output is a terminal.
        launcher: with its zygotes under way, so that torch loads while the configuration is read.

    Returns:
        Exit code: 0 when training came to its end.

    Raises:
        RltrainError: what went wrong, with its exit code.
    """
    supervisor = Supervisor(loaded, resume, dashboard, launcher)
    try:
        return supervisor.run()
    finally:
        supervisor.close()


class Supervisor:
    """One run. Arguments as `run`."""

    def __init__(self, loaded: LoadedConfig, resume: Path | None, dashboard: bool, launcher: Launcher):
        self.loaded, self.config = loaded, loaded.config
        folder: RunFolder | None = None
        if resume is None:
            check_writable(Path(self.config.run.dir))
        else:
            folder = RunFolder.open(resume, Path(self.config.run.dir))
        self.fleet = Fleet(
            plan_roles(self.config, str(folder.path) if folder else None), launcher, self.config.log.max_log_mib
        )
        self.signals = StopSignals()
        self.boot = Boot(self.config, self.fleet, folder, self._on_message, self.signals)
        self.spec: EnvSpec
        self.folder: RunFolder
        self.memory: RunMemory
        self.monitor = Monitor(loaded, dashboard)
        launcher.orphans.warn = self.monitor.warn
        self.done: dict | None = None
        self.failure: RltrainError | None = None
        self.first_update_s: float | None = None
        self.evaluations = Evaluations(self.fleet, self.config.eval.every_env_steps)
        self.recovery = Recovery(self.config, self.fleet, self.boot, self.monitor, self.evaluations, self._fail)

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Boot, watch until the learner is done, sum up."""
        try:
            self.spec, self.folder, self.memory = self._boot()
            self.recovery.begin_watch(self.memory)
            self.monitor.start(
                self.folder.path, self.spec, list(self.memory.rows.items()), self.memory.ring.states,
                lambda: self.memory.ring.dropped, self.boot.resumed, self.boot.device,
            )
            self._watch_to_the_end()
            return self._sum_up()
        finally:
            self.monitor.stop()

    def _watch_to_the_end(self) -> None:
        """Watch; whatever goes wrong here, the learner saves what it has and the summary says what happened."""
        try:
            self._watch()
        except Interrupted as error:
            self._write_summary(self._summary(error, last_known(self.memory.rows["learner"], self.folder.checkpoints)))
            raise
        except Exception:
            log.exception("the supervisor failed")
            self._fail(InternalError(
                "rltrain itself failed while it watched the run, which is stopped. Please report this:\n"
                f"{traceback.format_exc()}Log of the supervisor: {self.folder.logs / 'supervisor.log'}"
            ))  # fmt: skip

    def _boot(self) -> tuple[EnvSpec, RunFolder, RunMemory]:
        """Boot; a run folder that was made by then says that the run failed."""
        try:
            return self.boot.run()
        except RltrainError as error:
            if self.boot.folder is not None and self.boot.memory is not None:
                self.boot.folder.write_summary(summary_of_failed_boot(error, self.boot.resumed))
            raise

    @property
    def now_s(self) -> float:
        """Seconds since this process started."""
        return time.monotonic() - STARTED_S

    # -- watching ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the learner has said what it did, or has died."""
        next_tick = time.monotonic()
        while self.done is None and self.recovery.has_learner(self.failure is None):
            wake_at = min([next_tick, *self.recovery.due.values()])
            events = self.fleet.poll(max(0.0, wake_at - time.monotonic()))
            for child, message in events.messages:
                self._on_message(child, message)
            for child in [*self.boot.take_ended(), *events.ended]:
                self._on_end(child)
            self.evaluations.ask(int(self.memory.rows["learner"].get("env_steps")))
            if self.signals:
                self._on_stop_request()
            if self.failure is None:  # else nothing is begun any more, and nobody goes back to a checkpoint
                self.recovery.restart_due()
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._tick()

    def _on_message(self, child: Child, message: dict) -> None:
        if "ready" in message:
            child.ready_s = time.monotonic()
        elif "spec" in message:  # a restarted actor
            self.boot.send_layout(child)
        elif "metrics" in message:
            self.monitor.write_metrics(message["metrics"], message["env_steps"])
        elif "evaluation" in message:
            self.monitor.write_metrics(message["evaluation"], message["env_steps"])
            self.evaluations.heard(message["env_steps"], message["evaluation"])
        elif "checkpoint" in message:
            log.info("checkpoint written: env_steps=%d path=%s", message["env_steps"], message["checkpoint"])
        elif "warning" in message:
            self.monitor.warn(f"{child.name}: {message['warning']}")
        elif "first_update" in message:
            self.recovery.has_learned = True
            self.first_update_s = self.first_update_s or self.now_s
        elif "done" in message:
            self.done = message["done"]

    def _on_stop_request(self) -> None:
        if self.signals.is_urgent:
            raise Interrupted(f"{self.signals.names}: stopped at once, without a checkpoint.", self.signals.numbers[-1])
        if "learner" in self.recovery.due:
            self._fail(stopped_without_learner(self.fleet.children["learner"], self.signals))
        elif not self.memory.control.finish:
            what = "finishing the update and writing a checkpoint; again stops at once"
            self.monitor.warn(f"{self.signals.names}: {what}")
            self.memory.control.finish = True

    # -- deaths -----------------------------------------------------------------------------------------------

    def _on_end(self, child: Child) -> None:
        """A child ended while training."""
        if self.failure is not None or self.done is not None:
            return
        if child.role == "learner" and self.signals and told_error(child) is None:
            self._fail(stopped_without_learner(child, self.signals))
        else:
            self.recovery.on_end(child)

    def _fail(self, error: RltrainError) -> None:
        """Stop the run; the learner still saves what it has."""
        self.failure = error
        self.memory.control.stop = True

    def _tick(self) -> None:
        self.recovery.tick()
        phase = "stopping" if self.signals else self.recovery.waiting() or self.evaluations.phase()
        self.monitor.tick(phase, is_learner_exempt=not self.recovery.has_learned)

    # -- the end ----------------------------------------------------------------------------------------------

    def _sum_up(self) -> int:
        """Stop the others, write the summary, and say what came out."""
        self.memory.control.stop = True
        seconds = self.now_s
        total = self.monitor.total()
        grace_s, num_asked = self.config.supervision.shutdown_grace_s, self.signals.num_asked
        for child, message in self.fleet.wait_all(grace_s, lambda: self.signals.num_asked > num_asked):
            self._on_message(child, message)
        learner = self.fleet.children["learner"]
        if self.done is None and self.failure is None:
            self.failure = death_error(learner)
        done = self.done or last_known(self.memory.rows["learner"], self.folder.checkpoints)
        summary = {**self._summary(self.failure, done), "duration_s": seconds}
        self.monitor.finish(summary, total)
        self._write_summary({**summary, **self.monitor.summary_figures(total)})
        if self.failure is not None:
            raise self.failure
        return summary["exit_code"]

    def _summary(self, failure: RltrainError | None, done: dict[str, Any]) -> dict[str, Any]:
        """Return what the closing lines and `summary.json` say."""
        return {
            **done,
            "state": end_state(failure, done["reason"]),
            "exit_code": exit_code(failure, self.done, self.signals),
            "run_folder": str(self.folder.path),
            "duration_s": self.now_s,
            "first_update_s": self.first_update_s,
            "restarts": self.recovery.num_restarts,
            "seed": self.config.run.seed,
            "env_id": self.spec.env_id,
            "evaluation": self.evaluations.latest,
            "error": str(failure) if failure else None,
        }

    def _write_summary(self, summary: dict[str, Any]) -> None:
        try:
            self.folder.write_summary(summary)
        except RltrainError as error:
            if self.failure is None:
                self.failure = TrainingError(str(error))
            else:
                self.failure.args = (f"{self.failure}\n{error}",)

    def close(self) -> None:
        """End every process and give everything back."""
        memory, folder = self.boot.memory, self.boot.folder
        if memory is not None:
            memory.control.stop = True
        self.monitor.close()
        self.fleet.close()
        self.signals.release()
        if folder is not None:
            folder.release()
        if memory is not None:
            memory.arena.close()
        sys.stdout.flush()
