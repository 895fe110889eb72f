"""What follows the death of a process: restarts, the way back to the last checkpoint, or the end of the run.

Owns: which processes wait for their restart, and the budget. Called by the supervisor.

As long as the budget lasts:
    actor       its slots and requests are taken back, another takes up its lanes
    inference   another answers the requests as they stand in the mailboxes, with the weights on the board
    learner     all others end too, and everything boots again from the last checkpoint of this run
    evaluator   another waits for the next evaluation
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rltrain.config.schema import Config
from rltrain.errors import BootError, RltrainError, WorkerDied
from rltrain.supervisor.boot import Boot
from rltrain.supervisor.dead_actors import DeadActors
from rltrain.supervisor.deaths import consequence, death_error, told_error, why_it_ended
from rltrain.supervisor.evaluations import Evaluations
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.heartbeats import Heartbeats
from rltrain.supervisor.last_steps import LastSteps
from rltrain.supervisor.launcher import Child
from rltrain.supervisor.memory import RunMemory
from rltrain.supervisor.restarts import Restart, Restarts
from rltrain.telemetry.monitor import Monitor

_LOOK_S = 0.01
"""Distance between two looks at whether a dead actor's slots are back."""


class Recovery:
    """Decides and does it.

    Args:
        config: the resolved configuration.
        fleet: the processes.
        boot: which has booted them.
        monitor: told of each death, and of the way back.
        evaluations: abandoned when nobody plays them any more.
        fail: called with the error that ends the run.
    """

    def __init__(
        self, config: Config, fleet: Fleet, boot: Boot, monitor: Monitor, evaluations: Evaluations,
        fail: Callable[[RltrainError], None],
    ):
        self.config, self.fleet, self.boot, self.monitor = config, fleet, boot, monitor
        self.evaluations, self.fail = evaluations, fail
        self.restarts = Restarts(config.supervision.max_restarts, config.supervision.restart_backoff_s)
        self.due: dict[str, float] = {}
        """Name of each process that waits for its restart -> when (monotonic, s)."""
        self.num_restarts = 0
        self.has_given_up = False
        """There is no learner that could still save something."""
        self.memory: RunMemory
        self.last_steps: LastSteps | None = None
        """Of the whole run; made with its memory."""

    def begin_watch(self, memory: RunMemory) -> None:
        """Watch what has just booted."""
        self.memory = memory
        self.has_learned = False
        self.dead_actors = DeadActors(memory, self.fleet.plans)
        self.heartbeats = Heartbeats(self.config.supervision, memory.rows, self.monitor.warn, self.fleet.kill)
        self.fleet.is_hopeless = self.heartbeats.is_hopeless
        if self.last_steps is None:
            self.last_steps = LastSteps(memory, self.config.run.seed)

    def tick(self) -> None:
        """Once a second: look for processes that say nothing any more."""
        self.dead_actors.reclaim()
        if self.memory.control.finish:
            self.heartbeats.end_stopped(self.fleet.children["learner"])
        self.heartbeats.check(self.fleet.alive(), is_learner_exempt=not self.has_learned)

    def has_learner(self, may_come_back: bool) -> bool:
        """Whether there is one, or will be again if it may come back."""
        comes_back = may_come_back and "learner" in self.due
        return not self.has_given_up and (self.fleet.children["learner"].is_alive or comes_back)

    def waiting(self) -> str:
        """Return in words which processes start again in a second or later, nothing where none does."""
        soon = time.monotonic() + 1
        names = [name for name, at in self.due.items() if at >= soon]
        return f"waiting to restart {', '.join(names)}" if names else ""

    def on_end(self, child: Child) -> None:
        """Decide what follows the end of a child that ended while training."""
        assert self.last_steps is not None, "it is watched"
        told = told_error(child)
        if told is not None and child.role != "evaluator":
            return self.fail(told)
        last = None
        if child.role == "actor":
            last = self.last_steps.of(child.name, child.life)
            self.dead_actors.disown(child.name)
        elif child.role == "evaluator":
            self.evaluations.abandon()
        self.memory.rows[child.name].end()
        orphans = self.fleet.launcher.orphans
        orphans.kill(orphans.alive(child.pid) if child.pid is not None else [])
        # What it told, it would again; what failed in the starting run as well. What could start once may start again.
        may_differ = told is None and (child.is_ready or child.error is None or child.life > 0)
        decision = self.restarts.after_death(child.name, time.monotonic(), child.ready_s, may_differ)
        place = f" {last}" if last is not None and child.error is None else ""
        if isinstance(decision, Restart):
            self.due[child.name] = decision.at_s
            what = f"{child.name} {why_it_ended(child)}{place}.{child.hint()}"
            self.monitor.warn(f"{what} {self._consequence(child.role)}; see {child.log.path}")
        elif child.role == "evaluator":
            self.monitor.warn(f"evaluator {why_it_ended(child)}; no more evaluations. See {child.log.path}")
        else:
            is_actor = child.role == "actor"
            verdict = self.last_steps.verdict(child.name, last, decision.num_deaths) if is_actor else ""
            self.fail(death_error(child, place, decision.reason + verdict))
        return None

    def _consequence(self, role: str) -> str:
        env_steps = int(self.memory.rows["learner"].get("env_steps"))
        assert self.boot.folder is not None, "it has booted before"
        return consequence(role, self.boot.folder.checkpoints, env_steps)

    def restart_due(self) -> None:
        """Start again what has waited long enough."""
        now = time.monotonic()
        for name in [name for name, at in self.due.items() if at <= now]:
            if name in self.due:  # it may have come back with the learner
                self._restart(name)

    def _restart(self, name: str) -> None:
        if "learner" in self.due and name != "learner":
            del self.due[name]  # it comes back with everything else
            return
        self.dead_actors.reclaim()
        if self.dead_actors.is_pending(name):
            self.due[name] = time.monotonic() + _LOOK_S
            return
        del self.due[name]
        self.num_restarts += 1
        self.memory.rows[name].add("restarts")
        if name == "learner":
            return self._boot_again()
        child = self.fleet.start(name, self.memory.rows[name].num_lives)
        if child.role != "actor":  # which first says what its envs are
            assert self.boot.spec is not None, "it has booted before"
            self.fleet.send(child, {"spec": self.boot.spec.to_dict()})
            self.boot.send_layout(child)
        return None

    def _boot_again(self) -> None:
        """Begin again at the last checkpoint with every process; at the start where there is none yet."""
        self.fleet.kill_all()
        for row in self.memory.rows.values():
            row.end()
        self.due.clear()
        self.evaluations.abandon()
        try:
            self.boot.again(lambda: self.monitor.tick("starting again", is_learner_exempt=True))
        except RltrainError as error:
            return self._on_failed_boot(error)
        self.begin_watch(self.memory)
        return self.monitor.go_back(self.boot.resumed[0] if self.boot.resumed else 0)

    def _on_failed_boot(self, error: RltrainError) -> None:
        """Try once more, within the budget, where a process died or failed at what it could do before; else give up."""
        self.fleet.kill_all()
        if isinstance(error, BootError) and error.died is not None:
            decision = self.restarts.after_death("learner", time.monotonic(), ready_s=None)
            if isinstance(decision, Restart):
                self.due["learner"] = decision.at_s
                return self.monitor.warn(f"{str(error).splitlines()[0]} {self._consequence('learner')}, once more.")
            error = WorkerDied(f"{error}\n{decision.reason}")
        self.has_given_up = True
        return self.fail(error)
