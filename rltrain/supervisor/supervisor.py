"""The parent process of a run: boots the others, watches them, restarts them, shows what they do, and sums up.

Owns: the decision what a message, a death or a signal means for the run; everything else lies beside it: `boot.py`,
`deaths.py`, `dead_actors.py`, `heartbeats.py`, `restarts.py`, `stop_signals.py`, `evaluations.py`.

What follows a death, as long as the budget of restarts lasts:
    actor       its slots and requests are taken back, another takes up its lanes
    inference   another answers the requests as they stand in the mailboxes, with the weights on the board
    learner     all others end too, and everything boots again from the last checkpoint of this run
    evaluator   another waits for the next evaluation
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from rltrain import STARTED_S
from rltrain.config.load import LoadedConfig
from rltrain.errors import BootError, Interrupted, RltrainError, TrainingError, WorkerDied
from rltrain.fields import EnvSpec
from rltrain.supervisor.boot import Boot
from rltrain.supervisor.dead_actors import DeadActors
from rltrain.supervisor.deaths import CONSEQUENCE, death_error, last_known, told_error, why_it_ended
from rltrain.supervisor.evaluations import Evaluations
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.heartbeats import Heartbeats
from rltrain.supervisor.launcher import Child, Launcher
from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.outcome import end_state, exit_code, stopped_without_learner, summary_of_failed_boot
from rltrain.supervisor.restarts import Restart, Restarts
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
        launcher: with its zygote under way, so that torch loads while the configuration is read.

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
        self.restarts = Restarts(self.config.supervision.max_restarts, self.config.supervision.restart_backoff_s)
        self.due: dict[str, float] = {}
        """Name of each process that waits for its restart -> when (monotonic, s)."""
        self.done: dict | None = None
        self.failure: RltrainError | None = None
        self.has_given_up = False
        """There is no learner that could still save something."""
        self.first_update_s: float | None = None
        self.num_restarts = 0
        self.evaluations = Evaluations(self.fleet, self.config.eval.every_env_steps)

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Boot, watch until the learner is done, sum up."""
        try:
            self.spec, self.folder, self.memory = self._boot()
            self._begin_watch()
            self.monitor.start(
                self.folder.path, self.spec, list(self.memory.rows.items()), self.memory.ring.states,
                lambda: self.memory.ring.dropped, self.boot.resumed, self.boot.device,
            )
            self._watch()
            return self._sum_up()
        finally:
            self.monitor.stop()

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
        while self.done is None and self._has_learner:
            events = self.fleet.poll(max(0.0, min([next_tick, *self.due.values()]) - time.monotonic()))
            for child, message in events.messages:
                self._on_message(child, message)
            for child in [*self.boot.take_ended(), *events.ended]:
                self._on_end(child)
            self.evaluations.ask(int(self.memory.rows["learner"].get("env_steps")))
            if self.signals:
                self._on_stop_request()
            now = time.monotonic()
            for name in [name for name, at in self.due.items() if at <= now]:
                if name in self.due:  # it may have come back with the learner
                    self._restart(name)
            if now >= next_tick:
                next_tick = now + TICK_S
                self._tick()

    def _on_message(self, child: Child, message: dict) -> None:
        if "ready" in message:
            child.is_ready = True
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
            self.has_learned = True
            self.first_update_s = self.first_update_s or self.now_s
        elif "done" in message:
            self.done = message["done"]

    def _on_stop_request(self) -> None:
        if self.signals.is_urgent:
            raise Interrupted(f"{self.signals.names}: stopped at once, without a checkpoint.", self.signals.numbers[-1])
        if "learner" in self.due:
            self._fail(stopped_without_learner(self.fleet.children["learner"], self.signals))
        elif not self.memory.control.finish:
            what = "finishing the update and writing a checkpoint; again stops at once"
            self.monitor.warn(f"{self.signals.names}: {what}")
            self.memory.control.finish = True

    # -- deaths -----------------------------------------------------------------------------------------------

    @property
    def _has_learner(self) -> bool:
        """Whether there is one, or will be again."""
        comes_back = "learner" in self.due and self.failure is None
        return not self.has_given_up and (self.fleet.children["learner"].is_alive or comes_back)

    def _on_end(self, child: Child) -> None:
        """A child ended while training."""
        if self.failure is not None or self.done is not None:
            return
        told = told_error(child)
        if told is not None and child.role != "evaluator":
            return self._fail(told)
        if child.role == "actor":
            self.dead_actors.disown(child.name)
        elif child.role == "evaluator":
            self.evaluations.abandon()
        elif child.role == "learner" and self.signals:
            return self._fail(stopped_without_learner(child, self.signals))
        # What it told or reported while starting, it would again.
        may_differ = told is None and (child.is_ready or child.error is None)
        decision = self.restarts.after_death(child.name, time.monotonic(), may_differ)
        if isinstance(decision, Restart):
            self.due[child.name] = decision.at_s
            what = f"{child.name} {why_it_ended(child)}.{child.hint()}"
            self.monitor.warn(f"{what} {CONSEQUENCE[child.role]}; see {child.log.path}")
        elif child.role == "evaluator":
            self.monitor.warn(f"evaluator {why_it_ended(child)}; no more evaluations. See {child.log.path}")
        else:
            self._fail(death_error(child, decision.reason))
        return None

    def _fail(self, error: RltrainError) -> None:
        """Stop the run; the learner still saves what it has."""
        self.failure = error
        self.memory.control.stop = True

    def _restart(self, name: str) -> None:
        if "learner" in self.due and name != "learner":
            del self.due[name]  # it comes back with everything else
            return
        self.dead_actors.reclaim()
        if self.dead_actors.is_pending(name):
            self.due[name] = time.monotonic() + 0.05
            return
        del self.due[name]
        self.num_restarts += 1
        self.memory.rows[name].add("restarts")
        if name == "learner":
            return self._boot_again()
        child = self.fleet.start(name, is_restart=True)
        if child.role != "actor":  # which first says what its envs are
            self.fleet.send(child, {"spec": self.spec.to_dict()})
            self.boot.send_layout(child)
        return None

    def _boot_again(self) -> None:
        """Begin again at the last checkpoint with every process; at the start where there is none yet."""
        self.fleet.kill_all()
        self.due.clear()
        self.evaluations.abandon()
        try:
            self.boot.again(lambda: self.monitor.tick("starting again"))
        except RltrainError as error:
            return self._on_failed_boot(error)
        self._begin_watch()
        return self.monitor.go_back(self.boot.resumed[0] if self.boot.resumed else 0)

    def _on_failed_boot(self, error: RltrainError) -> None:
        """Try once more where a process died without a word and the budget allows it; else give up."""
        self.fleet.kill_all()
        if isinstance(error, BootError) and error.died is not None:
            decision = self.restarts.after_death("learner", time.monotonic(), booted=True)
            if isinstance(decision, Restart):
                self.due["learner"] = decision.at_s
                return self.monitor.warn(f"{str(error).splitlines()[0]} {CONSEQUENCE['learner']}, once more.")
            error = WorkerDied(f"{error}\n{decision.reason}")
        self.has_given_up = True
        return self._fail(error)

    def _begin_watch(self) -> None:
        self.has_learned = False
        self.dead_actors = DeadActors(self.memory, self.fleet.plans)
        self.heartbeats = Heartbeats(self.config.supervision, self.memory.rows, self.monitor.warn)

    def _tick(self) -> None:
        self.dead_actors.reclaim()
        self.heartbeats.check(self.fleet.alive(), is_learner_exempt=not self.has_learned)
        self.monitor.tick("stopping" if self.signals else self.evaluations.phase())

    # -- the end ----------------------------------------------------------------------------------------------

    def _sum_up(self) -> int:
        """Stop the others, write the summary, and say what came out."""
        self.memory.control.stop = True
        seconds = self.now_s
        total = self.monitor.total()
        grace_s, num_signals = self.config.supervision.shutdown_grace_s, len(self.signals.numbers)
        for child, message in self.fleet.wait_all(grace_s, lambda: len(self.signals.numbers) > num_signals):
            self._on_message(child, message)
        learner = self.fleet.children["learner"]
        if self.done is None and self.failure is None:
            self.failure = death_error(learner)
        done = self.done or last_known(self.memory.rows["learner"], self.folder.checkpoints)
        code = exit_code(self.failure, self.done, self.signals)
        summary = {
            **done,
            "state": end_state(self.failure, done["reason"]),
            "exit_code": code,
            "run_folder": str(self.folder.path),
            "duration_s": seconds,
            "first_update_s": self.first_update_s,
            "restarts": self.num_restarts,
            "seed": self.config.run.seed,
            "env_id": self.spec.env_id,
            "evaluation": self.evaluations.latest,
            "error": str(self.failure) if self.failure else None,
        }
        self.monitor.finish(summary, total)
        try:
            self.folder.write_summary({**summary, **self.monitor.summary_figures(total)})
        except RltrainError as error:
            self.failure = self.failure or TrainingError(str(error))
        if self.failure is not None:
            raise self.failure
        return code

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
