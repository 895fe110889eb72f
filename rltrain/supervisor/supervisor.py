"""The parent process of a run: boots the others, watches them, restarts them, shows what they do, and sums up.

Owns: the decision what a message, a death or a signal means for the run; everything else lies beside it: `boot.py`,
`deaths.py`, `dead_actors.py`, `heartbeats.py`, `restarts.py`.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from rltrain.config.load import LoadedConfig
from rltrain.errors import Interrupted, RltrainError, TrainingError
from rltrain.fields import EnvSpec
from rltrain.supervisor.boot import Boot
from rltrain.supervisor.dead_actors import DeadActors
from rltrain.supervisor.deaths import death_error, last_known, told_error, why_it_ended
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.heartbeats import Heartbeats
from rltrain.supervisor.launcher import Child, Launcher
from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.restarts import Restart, Restarts
from rltrain.supervisor.roles import plan_roles
from rltrain.supervisor.rundir import RunFolder, check_writable
from rltrain.telemetry.monitor import Monitor

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

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
    previous = supervisor.catch_signals()
    try:
        return supervisor.run()
    finally:
        supervisor.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


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
        self.signals: list[int] = []
        """Signals that asked to stop, in order."""
        self.boot = Boot(self.config, self.fleet, folder, self._on_message, self.signals)
        self.spec: EnvSpec
        self.folder: RunFolder
        self.memory: RunMemory
        self.monitor = Monitor(loaded, dashboard)
        self.restarts = Restarts(self.config.supervision.max_restarts, self.config.supervision.restart_backoff_s)
        self.due: dict[str, float] = {}
        """Name of each process that waits for its restart -> when (monotonic, s)."""
        self.clock_start: float = time.monotonic() - (time.time() - psutil.Process().create_time())
        self.done: dict | None = None
        self.failure: RltrainError | None = None
        self.first_update_s: float | None = None
        self.num_restarts = 0
        self.next_eval = self.config.eval.every_env_steps or 0
        self.is_evaluating = False
        self.evaluation: dict | None = None
        """The latest evaluation."""

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Boot, watch until the learner is done, sum up."""
        try:
            self.spec, self.folder, self.memory = self._boot()
            self.dead_actors = DeadActors(self.memory, self.fleet.plans)
            self.heartbeats = Heartbeats(self.config.supervision, self.memory.rows, self.monitor.warn)
            self.monitor.start(
                self.folder.path, self.spec, list(self.memory.rows.items()), self.memory.ring.states,
                self.boot.resumed, self.boot.device,
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
                env_steps = self.boot.resumed[0] if self.boot.resumed else 0
                summary = {"state": "failed", "exit_code": error.exit_code, "env_steps": env_steps, "error": str(error)}
                self.boot.folder.write_summary(summary)
            raise

    def catch_signals(self) -> dict[int, Any]:
        """Have SIGINT, SIGTERM and SIGHUP (the terminal is gone) stop the run, SIGQUIT without a checkpoint.

        Not those that nohup and the like turned off. Returns the handlers they had.
        """
        caught = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        return {number: signal.signal(number, self._on_signal) for number in caught}

    def _on_signal(self, number: int, _frame: object) -> None:
        self.signals.append(number)

    @property
    def now_s(self) -> float:
        """Seconds since this process started."""
        return time.monotonic() - self.clock_start

    # -- watching ---------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until the learner has said what it did, or has died."""
        next_tick = time.monotonic()
        handled_signals = 0
        while self.done is None and self.fleet.children["learner"].is_alive:
            events = self.fleet.poll(max(0.0, min([next_tick, *self.due.values()]) - time.monotonic()))
            for child, message in events.messages:
                self._on_message(child, message)
            for child in events.ended:
                self._on_end(child)
            self._ask_for_evaluation()
            while handled_signals < len(self.signals):
                handled_signals += 1
                self._on_stop_request(self.signals[handled_signals - 1], handled_signals)
            now = time.monotonic()
            for name in [name for name, at in self.due.items() if at <= now]:
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
            self.evaluation = {"env_steps": message["env_steps"], **message["evaluation"]}
            self.is_evaluating = False
        elif "checkpoint" in message:
            log.info("checkpoint written: env_steps=%d path=%s", message["env_steps"], message["checkpoint"])
        elif "warning" in message:
            self.monitor.warn(f"{child.name}: {message['warning']}")
        elif "first_update" in message:
            self.first_update_s = self.now_s
        elif "done" in message:
            self.done = message["done"]

    def _on_stop_request(self, number: int, count: int) -> None:
        names = ", then ".join(signal.Signals(n).name for n in self.signals[:count])
        if count > 1 or number == signal.SIGQUIT:
            raise Interrupted(f"{names}: stopped at once, without a checkpoint.", number)
        self.monitor.warn(f"{names}: finishing the update and writing a checkpoint; again stops at once")
        self.memory.control.finish = True

    def _on_end(self, child: Child) -> None:
        """A child ended while training."""
        if self.failure is not None or self.done is not None:
            return
        why = why_it_ended(child)
        if child.role == "learner":
            self.failure = death_error(child)
        elif child.role == "inference":
            self._fail(death_error(child))
        elif (told := told_error(child)) is not None:
            self._fail(told)
        else:
            if child.role == "actor":
                self.dead_actors.disown(child.name)
            else:
                self.is_evaluating = False
            may_differ = child.is_ready or child.error is None  # what it reported while starting, it would again
            decision = self.restarts.after_death(child.name, time.monotonic(), may_differ)
            if isinstance(decision, Restart):
                self.due[child.name] = decision.at_s
                self.monitor.warn(f"{child.name} {why}.{child.hint()} Restarting it; see {child.log.path}")
            elif child.role == "evaluator":
                self.monitor.warn(f"evaluator {why}; no more evaluations. See {child.log.path}")
            else:
                self._fail(death_error(child, decision.reason))

    def _fail(self, error: RltrainError) -> None:
        """Stop the run; the learner still saves what it has."""
        self.failure = error
        self.memory.control.stop = True

    def _restart(self, name: str) -> None:
        self.dead_actors.reclaim()
        if self.dead_actors.is_pending(name):
            self.due[name] = time.monotonic() + 0.05
            return
        del self.due[name]
        self.num_restarts += 1
        if self.fleet.plans[name].role == "actor":
            self.memory.rows[name].add("restarts")
        child = self.fleet.start(name, is_restart=True)
        if child.role == "evaluator":
            self.fleet.send(child, {"spec": self.spec.to_dict()})
            self.boot.send_layout(child)

    def _tick(self) -> None:
        self.dead_actors.reclaim()
        self.heartbeats.check(self.fleet.alive(), is_learner_exempt=self.first_update_s is None)
        self.monitor.tick(self._phase())

    def _phase(self) -> str:
        if self.signals:
            return "stopping"
        if self.evaluation is None:
            return "training"
        return f"training, evaluated {self.evaluation['eval/return_mean']:,.1f} at {self.evaluation['env_steps']:,}"

    def _ask_for_evaluation(self) -> None:
        evaluator, distance = self.fleet.children.get("evaluator"), self.config.eval.every_env_steps
        if evaluator is None or distance is None or not evaluator.is_ready or self.is_evaluating:
            return  # asked again meanwhile, it would play later weights under an earlier number of env steps
        env_steps = int(self.memory.rows["learner"].get("env_steps"))
        if env_steps < self.next_eval:
            return
        self.is_evaluating = True
        self.next_eval = (env_steps // distance + 1) * distance
        self.fleet.send(evaluator, {"evaluate": env_steps})

    # -- the end ----------------------------------------------------------------------------------------------

    def _sum_up(self) -> int:
        """Stop the others, write the summary, and say what came out."""
        self.memory.control.stop = True
        seconds = self.now_s
        total = self.monitor.total()
        num_signals = len(self.signals)
        for child, message in self.fleet.wait_all(
            self.config.supervision.shutdown_grace_s, lambda: len(self.signals) > num_signals
        ):
            self._on_message(child, message)
        learner = self.fleet.children["learner"]
        if self.done is None and self.failure is None:
            self.failure = death_error(learner)
        done = self.done or last_known(self.memory.rows["learner"], self.folder.checkpoints)
        code = self._exit_code()
        summary = {
            **done,
            "state": "failed" if self.failure else done["reason"],
            "exit_code": code,
            "run_folder": str(self.folder.path),
            "duration_s": seconds,
            "first_update_s": self.first_update_s,
            "restarts": self.num_restarts,
            "seed": self.config.run.seed,
            "env_id": self.spec.env_id,
            "evaluation": self.evaluation,
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

    def _exit_code(self) -> int:
        if self.failure is not None:
            return self.failure.exit_code
        if self.done is not None and self.done["reason"] == "stopped" and self.signals:
            return 128 + self.signals[0]
        return 0

    def close(self) -> None:
        """End every process and give everything back."""
        memory, folder = self.boot.memory, self.boot.folder
        if memory is not None:
            memory.control.stop = True
        self.monitor.close()
        self.fleet.close()
        if folder is not None:
            folder.release()
        if memory is not None:
            memory.arena.close()
        sys.stdout.flush()
