"""An actor process: steps its env groups and writes what happens into trajectory-ring slots.

Owns: the environments; the slots it has claimed, until it publishes them.
Written by: this process, into observation, reward and flag rows of its slots and its own counter row.
Read by: the inference server (observation rows), the learner (published slots), the supervisor (counters).
Blocks on: a reply (action), a free slot, in lockstep schedules a weight version.
Unblocked by: the inference server, the learner's release, the learner's publication; every wait also times out
to look at the stop word.
If the peer dies: the actor goes on waiting, with heartbeats, until the supervisor restarts the peer or stops the run.

Imports no torch, unless `pipeline.inference = "local"` makes it run the policy itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rltrain.envs import forked
from rltrain.envs.make import EnvGroup, describe, make_group
from rltrain.envs.seeding import life_seed, seed_process
from rltrain.errors import ShutdownRequested
from rltrain.fields import ACTION, FragmentSchema
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard, CounterRow
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from rltrain.shm.snapshots import SnapshotArea
from rltrain.shm.weights import WeightBoard
from rltrain.workers.channel import Channel

WAIT_S = 0.2
"""Longest single wait before looking at the stop word and saying that the process lives."""

REWARD_ROWS = ("reward", "terminated", "truncated", "valid", "episode_return", "episode_length")


@dataclass
class Lane:
    """One env group on its way through its fragments."""

    number: int
    group: EnvGroup
    carry: dict[str, np.ndarray]
    """The observation on which the next fragment starts, name -> [N, ...]."""
    fragment_index: int = 0
    slot: int | None = None
    step: int = 0
    rows: dict[int, list] = field(default_factory=dict)
    """slot -> for each step the views that `EnvGroup.step` reads and fills."""


def behaviour_version(schedule: str, fragment_index: int) -> int | None:
    """Return the policy version a fragment must be collected with, None when any will do.

    Args:
        schedule: `sync`, `overlap` or `async`.
        fragment_index: index of the fragment within its lane; equals the version of the learner that consumes it.
    """
    if schedule == "sync":
        return fragment_index
    if schedule == "overlap":
        return max(0, fragment_index - 1)
    return None


class Policy(Protocol):
    """What answers an actor: the mailboxes, or a local policy."""

    def post(self, lane: int, slot: int, step: int, fragment_index: int, required_version: int | None) -> None:
        """Ask for the actions of one step."""

    def wait_reply(self, lane: int, timeout_s: float) -> bool:
        """Wait until they lie in the slot; False when they did not come in time."""


class Actor:
    """Steps its lanes in turn: while one waits for actions, another is stepped.

    Args:
        settings: `index`, `groups`, `schedule`, `when_full`, `counter_row`.
        arena: the run's arena.
        groups: one env group for each lane.
        policy: chooses the actions.
        counters: the actor's row.
    """

    def __init__(self, settings: dict, arena: Arena, groups: list[EnvGroup], policy: Policy, counters: CounterRow):
        self.settings = settings
        self.schedule = settings["schedule"]
        self.schema: FragmentSchema = arena.layout.schema
        self.ring = TrajectoryRing(arena)
        self.mailboxes = Mailboxes(arena)
        self.policy = policy
        self.control = Control(arena)
        self.board = WeightBoard(arena)
        self.snapshots = SnapshotArea(arena)
        self.counters = counters
        self.owner = settings["counter_row"] + 1
        self.obs_names = [f.name for f in self.schema.fields if f.name.split(".")[0] == "obs"]
        first_lane = settings["index"] * settings["groups"]
        self.lanes = [Lane(first_lane + i, group, self._obs_buffers()) for i, group in enumerate(groups)]
        self.stepping = self.counters.stepping
        for group in groups:
            group.stepping = self.stepping
        self.published = 0
        """Fragments of this life, below the number of the life: see `FragmentMeta.sequence`."""

    def _obs_buffers(self) -> dict[str, np.ndarray]:
        n = self.schema.num_envs
        return {f.name: np.zeros((n, *f.shape), f.dtype) for f in self.schema.fields if f.name in self.obs_names}

    def start(self, is_restart: bool, resumed_fragment: int | None) -> None:
        """Reset or restore the envs and take up each lane where it was left.

        Args:
            is_restart: another life of this actor came before, in the same run.
            resumed_fragment: first fragment index of a resumed run, whose env states may lie in the snapshot area.
        """
        self.published = self.counters.num_lives << 32
        for lane in self.lanes:
            snapshot = None if is_restart else self.snapshots.read(lane.number)
            if snapshot is not None and snapshot[0] == resumed_fragment and snapshot[1]:
                self._restore(lane, snapshot[1])
            else:
                lane.group.reset(lane.carry)
            lane.fragment_index = self.mailboxes.progress(lane.number)
            self.mailboxes.set_live(lane.number, True)

    def run(self) -> None:
        """Step until the run ends.

        Waits for weights or a slot only when no lane has anything to do, and then for the lane that is furthest
        behind: after a restart lanes may be a fragment apart, and the weights that one waits for need the other's.

        Raises:
            ShutdownRequested: the stop word was set.
        """
        lanes = self.lanes
        length = self.schema.fragment_length
        enter, stepping = self.counters.enter, self.stepping
        while True:
            is_idle = True
            for lane in lanes:
                slot = self._try_begin(lane) if lane.slot is None else lane.slot
                if slot is None:
                    continue
                is_idle = False
                self._await_reply(lane)
                enter("env_step")
                stepping[3], stepping[4] = slot, lane.step
                action, obs_out, outputs = self._rows_of(lane, slot)[lane.step]
                lane.group.step(action, obs_out, *outputs)
                lane.step += 1
                if lane.step < length:
                    self.policy.post(
                        lane.number, slot, lane.step, lane.fragment_index,
                        behaviour_version(self.schedule, lane.fragment_index),
                    )
                else:
                    self._finish(lane, slot, obs_out)
                    self._look_up()  # a policy of its own and `overwrite_oldest` never make it wait
                    self._try_begin(lane)
            if is_idle:
                self._wait_to_begin(min(lanes, key=lambda lane: lane.fragment_index))

    def _await_reply(self, lane: Lane) -> None:
        self.counters.enter("wait_action")
        while not self.policy.wait_reply(lane.number, WAIT_S):
            self._look_up()

    def _look_up(self) -> None:
        if self.control.stop:
            raise ShutdownRequested
        self.counters.beat()

    # -- fragments --------------------------------------------------------------------------------------------

    def _wait_to_begin(self, lane: Lane) -> None:
        """Wait once, at most 0.2 s, for what the lane's next fragment lacks: weights, or a slot, which it takes."""
        version = behaviour_version(self.schedule, lane.fragment_index)
        if version is not None and self.board.latest_version < version:
            self.counters.enter("wait_weights")
            self.board.wait_version(version, WAIT_S)
        else:
            self.counters.enter("wait_slot")
            slot = self.ring.claim(self.owner, WAIT_S)
            if slot is not None:
                self._open(lane, slot)
        self._look_up()

    def _try_begin(self, lane: Lane) -> int | None:
        """Begin the lane's next fragment if weights and a slot are there now; returns the slot, or None."""
        version = behaviour_version(self.schedule, lane.fragment_index)
        slot = None
        if version is None or self.board.latest_version >= version:
            if self.settings["when_full"] == "overwrite_oldest":
                slot = self.ring.claim_overwriting(self.owner)
            else:
                slot = self.ring.claim(self.owner, 0)
        if slot is None:
            self.mailboxes.set_live(lane.number, False)  # the server need not wait for it
        else:
            self._open(lane, slot)
        return slot

    def _open(self, lane: Lane, slot: int) -> None:
        snapshot_from = self.control.snapshot_fragment
        if snapshot_from is not None and lane.fragment_index >= snapshot_from:
            self._snapshot(lane)
        lane.slot, lane.step = slot, 0
        for name, first in lane.carry.items():
            self.ring.field(name)[slot, 0] = first
        self.mailboxes.set_live(lane.number, True)
        version = behaviour_version(self.schedule, lane.fragment_index)
        self.policy.post(lane.number, slot, 0, lane.fragment_index, version)

    def _finish(self, lane: Lane, slot: int, last_obs: dict[str, np.ndarray]) -> None:
        self.counters.enter("write")
        for name, rows in last_obs.items():
            lane.carry[name][...] = rows
        self.published += 1
        version = int(self.ring.field("policy_version")[slot, 0])
        meta = FragmentMeta(lane.number, lane.fragment_index, version, self.published)
        length = self.schema.fragment_length
        valid = self.ring.field("valid")[slot, :length]
        terminated, truncated = (self.ring.field(name)[slot, :length] for name in ("terminated", "truncated"))
        lengths = self.ring.field("episode_length")[slot, :length][terminated | truncated]
        self.counters.add("env_steps", int(np.count_nonzero(valid)))
        self.counters.add("episodes", len(lengths))
        self.counters.observe_all("episode_length_steps", lengths)
        lane.slot = None
        if not self.ring.publish(slot, self.owner, meta):
            return  # the slot was taken away meanwhile: the fragment is collected again
        self.counters.add("fragments")
        lane.fragment_index += 1
        self.mailboxes.set_progress(lane.number, lane.fragment_index)

    def _snapshot(self, lane: Lane) -> None:
        """Write the lane's envs and the observation they stand on, before the first step of a fragment."""
        payload = lane.group.snapshot()
        if payload is None:
            content = b""  # an answer too: nobody need wait for more
        else:
            content = b"".join(array.tobytes() for array in lane.carry.values()) + payload
        if not self.snapshots.write(lane.number, lane.fragment_index, content):
            self.snapshots.write(lane.number, lane.fragment_index, b"")
        self.control.notify()

    def _restore(self, lane: Lane, payload: bytes) -> None:
        at = 0
        for array in lane.carry.values():
            array[...] = np.frombuffer(payload, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        lane.group.restore(payload[at:])

    def _rows_of(self, lane: Lane, slot: int) -> list:
        """The views for each step of a slot; made once for each lane and slot: making them costs more than a step."""
        rows = lane.rows.get(slot)
        if rows is None:
            arrays = {f.name: self.ring.field(f.name)[slot] for f in self.schema.fields}
            rows = lane.rows[slot] = [
                (
                    arrays[ACTION][t],
                    {name: arrays[name][t + 1] for name in self.obs_names},
                    tuple(arrays[name][t] for name in REWARD_ROWS),
                )
                for t in range(self.schema.fragment_length)
            ]
        return rows


def main(channel: Channel, settings: dict, fds: list[int]) -> None:
    """Run an actor: build the envs, report their spec, attach to the arena, step until told to stop."""
    seed = life_seed(settings["seed"], settings["life"])
    seed_process(seed, settings["index"])
    num_envs, groups_per_actor = settings["num_envs"], settings["groups"]
    first_env = settings["index"] * groups_per_actor * num_envs
    groups = [
        make_group(settings["env"], num_envs, seed, first_env + i * num_envs, num_threads=settings["env_threads"])
        for i in range(groups_per_actor)
    ]
    forked.end_copy()
    spec = describe(settings["env"], groups[0])
    channel.send({"spec": spec.to_dict()})
    message, arena_fds = channel.recv(None)
    arena = Arena.attach(arena_fds[0], ArenaLayout.from_dict(message["layout"]))
    counters = CounterBoard(arena).row(settings["counter_row"])
    if settings["inference"] == "local":
        from rltrain.inference.local_backend import LocalPolicy

        policy: Policy = LocalPolicy(arena, spec, message["policy"], counters)
    else:
        policy = Mailboxes(arena)
    actor = Actor(settings, arena, groups, policy, counters)
    counters.start(os.getpid())
    channel.send({"ready": True})
    try:
        actor.start(settings["life"] > 0, message["resumed_fragment"])
        actor.run()
    except ShutdownRequested:
        pass
    finally:
        forked.end_copy()
        for group in groups:
            group.close()
