"""The parent process of a run: boots the others, watches them, restarts them, shows what they do, and sums up.

Boot, in the order in which things become known (no env is built only to look at it):
    actors build their envs                    -> spec
    learner builds the model from the spec     -> size of the weights, version it starts at
    supervisor lays out the arena, makes the run folder
    learner attaches and puts resumed env states into the arena -> ready
    the others attach                          -> ready
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

import psutil

from rltrain.config.load import LoadedConfig, to_toml
from rltrain.errors import (
    BootError,
    CheckpointError,
    ConfigError,
    EnvContractError,
    Interrupted,
    RltrainError,
    TrainingError,
    WorkerDied,
)
from rltrain.fields import EnvSpec, FragmentSchema
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.ring import TrajectoryRing
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.launcher import Child, Launcher, end
from rltrain.supervisor.restarts import Restart, Restarts
from rltrain.supervisor.roles import num_lanes, plan_roles, policy_settings
from rltrain.supervisor.rundir import RunFolder, check_writable
from rltrain.telemetry.monitor import Monitor

log = logging.getLogger(__name__)

TICK_S = 1.0
"""Distance between two looks at heartbeats and two samples of the counters."""

_ERRORS = {kind.__name__: kind for kind in (ConfigError, CheckpointError, EnvContractError, TrainingError)}


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
        self.resume = resume
        self.folder: RunFolder | None = None
        if resume is None:
            check_writable(Path(self.config.run.dir))
        else:
            self.folder = RunFolder.open(resume, Path(self.config.run.dir))
        self.fleet = Fleet(
            plan_roles(self.config, str(self.folder.path) if self.folder else None), launcher,
            self.config.log.max_log_mib,
        )
        self.monitor = Monitor(loaded, dashboard)
        self.restarts = Restarts(self.config.supervision.max_restarts, self.config.supervision.restart_backoff_s)
        self.due: dict[str, float] = {}
        """Name of each process that waits for its restart -> when (monotonic, s)."""
        self.reclaim_pending: dict[str, tuple[int, float]] = {}
        """Name of each dead actor whose slots the server may still write to -> its batch count and the time then."""
        self.started_s = time.time() - psutil.Process().create_time()
        self.clock_start = time.monotonic() - self.started_s
        self.spec: EnvSpec | None = None
        self.arena: Arena | None = None
        self.start_version = 0
        self.resumed: tuple[int, int] | None = None
        """Env steps and updates of a resumed run's checkpoint."""
        self.done: dict | None = None
        self.failure: RltrainError | None = None
        self.signals: list[int] = []
        self.asked_for_stack: set[str] = set()
        self.first_update_s: float | None = None
        self.num_restarts = 0
        self.next_eval = self.config.eval.every_env_steps
        self.evaluation: dict | None = None
        """The latest evaluation."""

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Boot, watch until the learner is done, sum up."""
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._boot()
            self._watch()
            return self._sum_up()
        finally:
            self.monitor.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame) -> None:
        self.signals.append(number)

    @property
    def now_s(self) -> float:
        """Seconds since this process started."""
        return time.monotonic() - self.clock_start

    # -- boot -------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        names = sorted(self.fleet.plans, key=lambda name: self.fleet.plans[name].needs_torch)
        for name in names:  # those that need not wait for torch first
            self.fleet.start(name)
        deadline = time.monotonic() + self.config.supervision.boot_timeout_s
        replies: dict[str, dict] = {}
        while not all(child.is_ready for child in self.fleet.children.values()):
            events = self.fleet.poll(0.5)
            for child, message in events.messages:
                self._on_boot_message(child, message, replies)
            for child in self.fleet.children.values():
                if not child.is_alive or child.error is not None:
                    raise self._boot_error(child)
            self.fleet.launcher.check_zygote()
            if self.signals:
                raise Interrupted("Stopped while starting; nothing was trained.", self.signals[0])
            if time.monotonic() > deadline:
                raise self._boot_timeout()
        self.monitor.start(self.folder.path, self.spec, self._counter_rows(), self.ring.states, self.resumed)

    def _on_boot_message(self, child: Child, message: dict, replies: dict[str, dict]) -> None:
        if "ready" in message:
            child.is_ready = True
            if child.role == "learner":
                for other in self.fleet.children.values():
                    if other is not child:
                        self._send_layout(other)
        elif "spec" in message or "weight_bytes" in message:
            replies[child.name] = message
            if "spec" in message and self.spec is None:
                self.spec = EnvSpec.from_dict(message["spec"])
                for other in self.fleet.children.values():
                    if other.role != "actor":
                        self.fleet.send(other, {"spec": message["spec"]})
            if all(c.name in replies for c in self.fleet.children.values() if c.role in ("actor", "learner")):
                self._lay_out(replies)
        else:
            self._on_message(child, message)

    def _lay_out(self, replies: dict[str, dict]) -> None:
        """Create the arena and the run folder, now that all sizes are known."""
        specs = {name: EnvSpec.from_dict(reply["spec"]) for name, reply in replies.items() if "spec" in reply}
        for name, spec in specs.items():
            if not spec.has_same_spaces(self.spec):
                raise BootError(
                    f"{name} has an environment with other spaces than the rest. All environments of a run must have "
                    f"the same.\nthe rest: {self.spec}\n{name}: {spec}"
                )
        snapshot_bytes = max(spec.snapshot_bytes for spec in specs.values())
        schema = FragmentSchema.for_env(
            self.spec, self.config.pipeline.fragment_length, self.config.actors.envs_per_group
        )
        obs_row = sum(f.row_bytes(schema.num_envs) for f in schema.fields if f.name.split(".")[0] == "obs")
        layout = ArenaLayout.plan(
            schema,
            num_slots=self.config.pipeline.num_slots,
            num_actors=self.config.actors.num_actors,
            groups_per_actor=self.config.actors.groups_per_actor,
            weight_bytes=replies["learner"]["weight_bytes"],
            snapshot_bytes=snapshot_bytes + obs_row if snapshot_bytes else 0,
            roles=tuple(plan.role for plan in self.fleet.plans.values()),
        )
        self.arena = Arena.create(layout)
        self.control, self.ring, self.mailboxes = (
            Control(self.arena), TrajectoryRing(self.arena), Mailboxes(self.arena)
        )
        self.start_version = replies["learner"]["version"]
        if self.resume:
            self.resumed = replies["learner"]["env_steps"], replies["learner"]["updates"]
        for lane in range(num_lanes(self.config)):
            self.mailboxes.set_progress(lane, self.start_version)
        if self.folder is None:
            self.folder = RunFolder.create(Path(self.config.run.dir), self.config.run.name)
        self.folder.write_config(to_toml(self.config))
        self.folder.write_state({"env_id": self.spec.env_id})
        self.fleet.open_logs(self.folder.logs)
        self._send_layout(self.fleet.children["learner"])

    def _send_layout(self, child: Child) -> None:
        message = {
            "layout": self.arena.layout.to_dict(),
            "policy": policy_settings(self.config),
            "run_folder": str(self.folder.path),
            "resumed_fragment": self.start_version if self.resume else None,
        }
        self.fleet.send(child, message, (self.arena.fd,))

    def _boot_error(self, child: Child) -> RltrainError:
        error = child.error
        if error is None:
            tail = "\n".join(child.log.tail(20))
            return BootError(f"{child.name} {child.describe_end()} while starting.\n{tail}")
        if error["kind"] in _ERRORS:
            return _ERRORS[error["kind"]](error["message"])
        return BootError(f"{child.name} failed while starting:\n{error['traceback']}")

    def _boot_timeout(self) -> BootError:
        waiting = [c for c in self.fleet.children.values() if not c.is_ready]
        first = waiting[0]
        end(first, signal.SIGUSR1)
        self.fleet.poll(0.5)
        tail = "\n".join(first.log.tail(20))
        return BootError(
            f"{', '.join(c.name for c in waiting)} not ready after supervision.boot_timeout_s = "
            f"{self.config.supervision.boot_timeout_s:g} s. An env's constructor or its first reset may hang: run "
            f"`rltrain doctor CONFIG`, or raise the limit.\nWhere {first.name} is:\n{tail}"
        )

    def _counter_rows(self) -> list:
        board = CounterBoard(self.arena)
        self.rows = {plan.name: board.row(plan.row) for plan in self.fleet.plans.values()}
        return list(self.rows.items())

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
            while handled_signals < len(self.signals):
                handled_signals += 1
                self._on_stop_request(handled_signals)
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
            self._send_layout(child)
        elif "metrics" in message:
            self.monitor.write_metrics(message["metrics"], message["env_steps"])
        elif "evaluation" in message:
            self.monitor.write_metrics(message["evaluation"], message["env_steps"])
            self.evaluation = {"env_steps": message["env_steps"], **message["evaluation"]}
        elif "checkpoint" in message:
            log.info("checkpoint written: env_steps=%d path=%s", message["env_steps"], message["checkpoint"])
        elif "warning" in message:
            self.monitor.warn(f"{child.name}: {message['warning']}")
        elif "first_update" in message:
            self.first_update_s = self.now_s
        elif "done" in message:
            self.done = message["done"]

    def _on_stop_request(self, count: int) -> None:
        name = signal.Signals(self.signals[0]).name
        if count == 1:
            self.monitor.warn(f"{name}: finishing the update and writing a checkpoint; again stops at once")
            self.control.finish = True
        else:
            raise Interrupted(f"{name} twice: stopped at once, without a checkpoint.", self.signals[0])

    def _on_end(self, child: Child) -> None:
        """A child ended while training."""
        if self.failure is not None or self.done is not None:
            return
        why = child.error["message"].splitlines()[0] if child.error else child.describe_end()
        if child.role == "learner":
            self.failure = self._death(child)
        elif child.role == "inference":
            self._fail(self._death(child))
        elif child.error and child.error["kind"] in _ERRORS:
            self._fail(_ERRORS[child.error["kind"]](f"{child.name}: {child.error['message']}"))
        else:
            if child.role == "actor":
                self._disown(child)
            decision = self.restarts.after_death(child.name, time.monotonic(), child.is_ready)
            if isinstance(decision, Restart):
                self.due[child.name] = decision.at_s
                self.monitor.warn(f"{child.name} {why}; restarting it. See {child.log.path}")
            elif child.role == "evaluator":
                self.monitor.warn(f"evaluator {why}; no more evaluations. See {child.log.path}")
            else:
                self._fail(self._death(child, decision.reason))

    def _death(self, child: Child, reason: str = "") -> RltrainError:
        error = child.error or {}
        if error.get("kind") in _ERRORS:
            return _ERRORS[error["kind"]](f"{child.name}: {error['message']}")
        lines = [f"{child.name} (pid {child.pid}) {child.describe_end()}.{' ' + reason if reason else ''}"]
        lines += [error["traceback"]] if error else child.log.tail(20)
        lines.append(f"Its log: {child.log.path}")
        return WorkerDied("\n".join(lines))

    def _fail(self, error: RltrainError) -> None:
        """Stop the run; the learner still saves what it has."""
        self.failure = error
        self.control.stop = True

    # -- dead and silent actors -------------------------------------------------------------------------------

    def _disown(self, child: Child) -> None:
        """Withdraw a dead actor's requests. Its slots return once the server cannot be writing to them any more."""
        for lane in self.fleet.plans[child.name].lanes:
            self.mailboxes.set_live(lane, False)
            self.mailboxes.cancel(lane)
        batches = int(self.rows["inference"].get("batches")) if "inference" in self.rows else 0
        self.reclaim_pending[child.name] = (batches, time.monotonic_ns())
        self._reclaim()

    def _reclaim(self) -> None:
        """Return the slots of dead actors.

        The server may be in a batch that it began before the request was withdrawn. That batch has ended when its
        count has moved on, or when it has begun to wait since.
        """
        server = self.rows.get("inference")
        for name, (batches, since_ns) in list(self.reclaim_pending.items()):
            if server is None or server.get("batches") > batches or server.waits_since("wait_request", since_ns):
                self.ring.reclaim(self.fleet.plans[name].row + 1)
                del self.reclaim_pending[name]

    def _restart(self, name: str) -> None:
        self._reclaim()
        if name in self.reclaim_pending:  # its owner id must not be in use twice
            self.due[name] = time.monotonic() + 0.05
            return
        del self.due[name]
        self.num_restarts += 1
        self.rows[name].add("restarts") if self.fleet.plans[name].role == "actor" else None
        child = self.fleet.start(name, is_restart=True)
        if child.role == "evaluator":
            self.fleet.send(child, {"spec": self.spec.to_dict()})
            self._send_layout(child)

    def _tick(self) -> None:
        self._reclaim()
        self._check_heartbeats()
        self._ask_for_evaluation()
        self.monitor.tick("stopping" if self.signals else "training")

    def _check_heartbeats(self) -> None:
        limit = self.config.supervision
        for child in self.fleet.alive():
            if not child.is_ready:
                if time.monotonic() - child.started_s > limit.boot_timeout_s:
                    child.is_silent = True
                    end(child, signal.SIGKILL)
                continue
            age = self.rows[child.name].heartbeat_age_s
            if child.role == "learner" and self.first_update_s is None:
                continue  # may be compiling
            if age > limit.heartbeat_timeout_s and child.name not in self.asked_for_stack:
                self.asked_for_stack.add(child.name)
                end(child, signal.SIGUSR1)  # its stack goes into its log; it is killed at the next look
            elif age > limit.heartbeat_timeout_s:
                self.asked_for_stack.discard(child.name)
                child.is_silent = True
                stack = " | ".join(child.log.tail(3))
                self.monitor.warn(f"{child.name} silent for {age:.0f} s in state {self.rows[child.name].state}: {stack}")
                end(child, signal.SIGKILL)
            else:
                self.asked_for_stack.discard(child.name)

    def _ask_for_evaluation(self) -> None:
        evaluator = self.fleet.children.get("evaluator")
        env_steps = int(self.rows["learner"].get("env_steps"))
        if evaluator is None or not evaluator.is_ready or env_steps < self.next_eval:
            return
        self.next_eval = (env_steps // self.config.eval.every_env_steps + 1) * self.config.eval.every_env_steps
        self.fleet.send(evaluator, {"evaluate": env_steps})

    # -- the end ----------------------------------------------------------------------------------------------

    def _sum_up(self) -> int:
        """Stop the others, write the summary, and say what came out."""
        self.control.stop = True
        seconds = self.now_s
        total = self.monitor.total()
        for child, message in self.fleet.wait_all(self.config.supervision.shutdown_grace_s):
            self._on_message(child, message)
        learner = self.fleet.children["learner"]
        if self.done is None and self.failure is None:
            self.failure = self._death(learner)
        done = self.done or {"reason": "failed", "env_steps": int(self.rows["learner"].get("env_steps"))}
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
        self.folder.write_summary({**summary, **self.monitor.summary_figures(total)})
        if self.failure is not None:
            raise self.failure
        return code

    def _exit_code(self) -> int:
        if self.failure is not None:
            return self.failure.exit_code
        if self.done["reason"] == "stopped" and self.signals:
            return 128 + self.signals[0]
        return 0

    def close(self) -> None:
        """End every process and give everything back."""
        if self.arena is not None:
            self.control.stop = True
        self.fleet.close()
        self.monitor.close()
        if self.folder is not None:
            self.folder.release()
        if self.arena is not None:
            self.arena.close()
        sys.stdout.flush()
