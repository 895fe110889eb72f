"""Boot: from the plan of a run to processes that are all ready.

Owns: the order in which things become known (no env is built only to look at it):
    actors build their envs                    -> spec
    learner builds the model from the spec     -> size of the weights, version it starts at
    supervisor lays out the arena, makes the run folder
    learner attaches and puts resumed env states into the arena -> ready
    the others attach                          -> ready
Called by the supervisor once; afterwards it brings the processes that are restarted in.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rltrain.config.load import to_toml
from rltrain.config.schema import Config
from rltrain.errors import BootError, Interrupted, RltrainError
from rltrain.fields import EnvSpec, FragmentSchema
from rltrain.shm.arena import ArenaLayout
from rltrain.supervisor.deaths import boot_error, log_tail
from rltrain.supervisor.fleet import Fleet
from rltrain.supervisor.launcher import Child, end
from rltrain.supervisor.memory import RunMemory, check_fragment_memory, check_replay_memory
from rltrain.supervisor.roles import num_actors, num_lanes, num_slots, policy_settings
from rltrain.supervisor.rundir import RunFolder
from rltrain.supervisor.stop_signals import StopSignals

_ADVICE = {
    "actor": "An env's constructor or its first reset may hang: run `rltrain doctor CONFIG`, or raise the limit.",
    "other": "The model may be too large for this machine, or the machine too busy: raise the limit.",
}
_STACK_S = 0.5
"""What a process gets to write its stack."""


class Boot:
    """The boot of one run. What it made stays here also when it fails half-way, so that the caller can give it back.

    Args:
        config: the resolved configuration.
        fleet: the processes, none started yet.
        folder: of the run to continue, None for a new run.
        on_message: gets what is not about boot.
        signals: those that asked to stop.
    """

    def __init__(
        self, config: Config, fleet: Fleet, folder: RunFolder | None,
        on_message: Callable[[Child, dict[str, Any]], None], signals: StopSignals,
    ):
        self.config, self.fleet, self.folder = config, fleet, folder
        self.on_message, self.signals = on_message, signals
        self.is_resume = folder is not None
        self.spec: EnvSpec | None = None
        self.memory: RunMemory | None = None
        self.start_version = 0
        self.resumed: tuple[int, int] | None = None
        """Env steps and updates of a resumed run's checkpoint."""
        self.device = config.learner.device
        """Where the learner trains; resolved once it has answered."""
        self._replies: dict[str, dict[str, Any]] = {}
        self._ended: list[Child] = []
        self._is_first = True
        self._on_wait: Callable[[], None] = lambda: None

    def run(self) -> tuple[EnvSpec, RunFolder, RunMemory]:
        """Start every process and wait until all are ready.

        Raises:
            RltrainError: one failed, was not ready in time, or a signal asked to stop.
        """
        fleet = self.fleet
        names = sorted(fleet.plans, key=lambda name: fleet.plans[name].needs_torch)
        for name in names:  # those that need not wait for torch first
            fleet.start(name)
        deadline = time.monotonic() + self.config.supervision.boot_timeout_s
        while not all(child.is_ready for child in fleet.children.values()):
            events = fleet.poll(0.5)
            for child, message in events.messages:
                self._hear(child, message)
            for child in fleet.children.values():
                if (not child.is_alive or child.error is not None) and not self._may_wait(child):
                    raise boot_error(child, has_booted=not self._is_first)
            self._ended += [child for child in events.ended if self._may_wait(child)]
            fleet.launcher.check_zygotes()
            if self.signals:
                raise Interrupted(f"Stopped while starting; {self._what_is_left()}.", self.signals.first)
            self._on_wait()
            if time.monotonic() > deadline:
                raise self._timeout()
        spec, folder, memory = self.spec, self.folder, self.memory
        assert spec is not None, "all are ready, so the actors have said what their env is"
        assert folder is not None, "all are ready, so the run folder was made"
        assert memory is not None, "all are ready, so the arena was laid out"
        return spec, folder, memory

    def _what_is_left(self) -> str:
        """Say what somebody who stops a boot can go on from."""
        if self._is_first:
            return "nothing was trained"
        return "resume from the last checkpoint" if self.is_resume else "no checkpoint had been written"

    def again(self, on_wait: Callable[[], None]) -> None:
        """Boot once more after every process has ended, from the last checkpoint, in the memory that is there.

        Without a checkpoint from the beginning. Envs begin as their snapshots say, as in a resumed run.

        Args:
            on_wait: called about twice a second meanwhile.

        Raises:
            RltrainError: as of `run`.
        """
        assert self.memory is not None, "it has run before"
        assert self.folder is not None, "it has run before"
        self.memory.arena.begin_anew()
        self.is_resume = any(self.folder.checkpoints.glob("checkpoint-*.pt"))
        plan = self.fleet.plans["learner"]
        settings = {**plan.settings, "resume": str(self.folder.path) if self.is_resume else None}
        self.fleet.plans["learner"] = replace(plan, settings=settings)
        self.spec, self.resumed, self.start_version, self._replies = None, None, 0, {}
        self._ended = []
        self._is_first, self._on_wait = False, on_wait
        self.run()

    def take_ended(self) -> list[Child]:
        """Return, once, those that became ready and ended while others were still starting."""
        ended, self._ended = self._ended, []
        return ended

    @staticmethod
    def _may_wait(child: Child) -> bool:
        """Whether the end of this child is one while training, though others still start."""
        return child.is_ready and child.role != "learner"

    def send_layout(self, child: Child) -> None:
        """Tell a process where everything lies; what it needs to attach and become ready."""
        assert self.memory is not None, "nothing is laid out yet"
        assert self.folder is not None, "nothing is laid out yet"
        message = {
            "layout": self.memory.arena.layout.to_dict(),
            "policy": policy_settings(self.config),
            "run_folder": str(self.folder.path),
            "resumed_fragment": self.start_version if self.is_resume else None,
        }
        self.fleet.send(child, message, (self.memory.arena.fd,))

    def _hear(self, child: Child, message: dict[str, Any]) -> None:
        if "ready" in message:
            child.ready_s = time.monotonic()
            if child.role == "learner":
                for other in self.fleet.children.values():
                    if other is not child:
                        self.send_layout(other)
        elif "spec" in message or "weight_bytes" in message:
            self._replies[child.name] = message
            if "spec" in message and self.spec is None:
                self.spec = EnvSpec.from_dict(message["spec"])
                for other in self.fleet.children.values():
                    if other.role != "actor":
                        self.fleet.send(other, {"spec": message["spec"]})
            if all(c.name in self._replies for c in self.fleet.children.values() if c.role in ("actor", "learner")):
                self._lay_out(*self._agreed_spec())
        else:
            self.on_message(child, message)

    def _agreed_spec(self) -> tuple[EnvSpec, int]:
        """The spec that all actors share, and the size of the largest of their snapshots."""
        specs = {name: EnvSpec.from_dict(reply["spec"]) for name, reply in self._replies.items() if "spec" in reply}
        assert self.spec is not None, "the learner answers only once it has a spec"
        for name, spec in specs.items():
            if not spec.has_same_spaces(self.spec):
                raise BootError(
                    f"{name} has an environment with other spaces than the rest. All environments of a run must have "
                    f"the same.\nthe rest: {self.spec}\n{name}: {spec}"
                )
        return self.spec, max(spec.snapshot_bytes for spec in specs.values())

    def _lay_out(self, spec: EnvSpec, snapshot_bytes: int) -> None:
        """Create the arena and the run folder, now that all sizes are known."""
        learner = self._replies["learner"]
        self.start_version, self.device = learner["version"], learner["device"]
        if self.is_resume:
            self.resumed = learner["env_steps"], learner["updates"]
        if self.memory is None:
            self.memory = self._make_memory(spec, snapshot_bytes, learner["weight_bytes"], learner["held_bytes"])
            self.folder = self._make_folder(spec)
            self.fleet.open_logs(self.folder.logs)
        for lane in range(num_lanes(self.config)):
            self.memory.mailboxes.set_progress(lane, self.start_version)
        self.send_layout(self.fleet.children["learner"])

    def _make_memory(self, spec: EnvSpec, snapshot_bytes: int, weight_bytes: int, held_bytes: int) -> RunMemory:
        config, plans = self.config, self.fleet.plans.values()
        schema = FragmentSchema.for_env(spec, config.pipeline.fragment_length, config.actors.envs_per_group)
        obs_row = sum(f.row_bytes(schema.num_envs) for f in schema.fields if f.name.split(".")[0] == "obs")
        layout = ArenaLayout.plan(
            schema,
            num_slots=num_slots(config),
            num_actors=num_actors(config),
            groups_per_actor=config.actors.groups_per_actor,
            weight_bytes=weight_bytes,
            snapshot_bytes=snapshot_bytes + obs_row if snapshot_bytes else 0,
            roles=tuple(plan.role for plan in plans),
        )
        self._check_memory(spec, layout, held_bytes)
        return RunMemory.create(layout, {plan.name: plan.row for plan in plans})

    def _check_memory(self, spec: EnvSpec, layout: ArenaLayout, held_bytes: int) -> None:
        """Refuse what the learner would be killed for later."""
        config = self.config
        check_fragment_memory(config, layout.schema, layout.nbytes)
        if config.algo.chosen.source == "replay":
            warning = check_replay_memory(config, spec, num_lanes(config), layout.nbytes, held_bytes)
            if warning is not None:
                self.on_message(self.fleet.children["learner"], {"warning": warning})

    def _make_folder(self, spec: EnvSpec) -> RunFolder:
        """Write what the run folder says from the beginning; a new one that cannot be written goes again."""
        folder = self.folder or RunFolder.create(Path(self.config.run.dir), self.config.run.name)
        try:
            folder.write_config(to_toml(self.config))
            folder.write_state({"env_id": spec.env_id})
        except RltrainError:
            folder.release()
            if self.folder is None:
                shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return folder

    def _owes_an_answer(self, child: Child) -> bool:
        """Whether boot waits for this child, and not this child for another."""
        if child.is_ready:
            return False
        if child.role == "actor" and child.name not in self._replies:
            return True
        if child.role == "learner" and self.spec is not None and child.name not in self._replies:
            return True
        return self.memory is not None and (child.role == "learner" or self.fleet.children["learner"].is_ready)

    def _timeout(self) -> BootError:
        waiting = [child for child in self.fleet.children.values() if self._owes_an_answer(child)]
        waiting = waiting or [child for child in self.fleet.children.values() if not child.is_ready]
        first = waiting[0]
        end(first, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        while (left := deadline - time.monotonic()) > 0:
            self.fleet.poll(left)  # returns with the first piece of it
        advice = _ADVICE["actor" if first.role == "actor" else "other"]
        where = log_tail(first)
        return BootError(
            f"{', '.join(c.name for c in waiting)} not ready after supervision.boot_timeout_s = "
            f"{self.config.supervision.boot_timeout_s:g} s. {advice}"
            + (f"\nWhere {first.name} is:\n{where}" if where else "")
        )
