"""The inference server: one policy on one device answers all actors in dynamic batches.

Owns: the policy's weights on its device; nothing in the arena but its counter row.
Written by: this process, into action, log-probability and version rows of the slots whose lanes wait for a reply.
Read by: actors (actions) and, through the slots, the learner.
Blocks on: the doorbell, which every request rings.
Unblocked by: actors; every wait also times out to look at the stop word.
If the peer dies: an actor's open request is answered into its slot and never read; after a restart of this server
unanswered requests are found in the mailboxes as they were.
"""

from __future__ import annotations

import os
import time

import numpy as np

from rltrain.fields import ACTION, EnvSpec
from rltrain.inference.batcher import AdaptiveDelay, BatcherSettings, Fire, decide
from rltrain.inference.torch_backend import TorchBackend
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.mailbox import Mailboxes, PendingRequests
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.weights import WeightBoard
from rltrain.workers.channel import Channel
from rltrain.workers.device import take_cores, take_device, use_reproducible_kernels

WAIT_S = 0.2


class InferenceServer:
    """Collects requests, fires batches, writes actions into the slab.

    Args:
        settings: `counter_row`, `batcher` (fields of `BatcherSettings`), `device_option` (which one names the device).
        arena: the run's arena.
        backend: what runs the policy.
    """

    def __init__(self, settings: dict, arena: Arena, backend: TorchBackend):
        self.backend = backend
        self.schema = arena.layout.schema
        self.num_envs = self.schema.num_envs
        self.ring = TrajectoryRing(arena)
        self.mailboxes = Mailboxes(arena)
        self.control = Control(arena)
        self.counters = CounterBoard(arena).row(settings["counter_row"])
        self.batcher = BatcherSettings(**settings["batcher"])
        self.adaptive = AdaptiveDelay(self.batcher) if self.batcher.adaptive else None
        self.obs_names = list(backend.obs_rows)
        self.version_rows = self.ring.field("policy_version")
        self.env_offsets = np.arange(self.num_envs, dtype=np.int64)
        self.sizes = [self.num_envs] * (arena.layout.num_actors * arena.layout.groups_per_actor)

    def run(self) -> None:
        """Serve until the stop word is set."""
        counters, mailboxes = self.counters, self.mailboxes
        counters.enter("wait_request")
        while not self.control.stop:
            doorbell = mailboxes.doorbell
            pending = mailboxes.pending()
            num_pending = len(pending.lane)
            if num_pending == 0:
                counters.enter("wait_request")
                mailboxes.wait_request(doorbell, WAIT_S)
                continue
            version = self._version_for(int(pending.required_version[0]))
            if version is None:
                counters.enter("wait_request")  # not there yet, or just being overwritten
                self.backend.board.wait_version(max(0, int(pending.required_version[0])), WAIT_S)
                continue
            chosen = self._same_version(pending, num_pending)
            age_us = (time.monotonic_ns() - int(pending.arrival_ns[0])) / 1e3
            decision = decide(
                self.sizes[: len(chosen)], age_us, num_pending, mailboxes.num_live(), self.batcher, self.adaptive
            )
            if isinstance(decision, Fire):
                self._fire(pending, chosen[: decision.num_requests], version, decision.reason)
            else:
                counters.enter("batch_delay")
                mailboxes.wait_request(doorbell, decision.wait_us / 1e6)

    def _version_for(self, required: int) -> int | None:
        """The version to answer with, loaded; None while it is not there."""
        version = self.backend.best_version(None if required < 0 else required)
        if self.backend.is_loaded(version):
            return version
        self.counters.enter("load_weights")
        return self.backend.load(version)

    @staticmethod
    def _same_version(pending: PendingRequests, num_pending: int) -> np.ndarray:
        """Positions of the pending requests that want the oldest request's version, oldest first."""
        required = pending.required_version
        if num_pending == 1 or required[0] < 0:
            return np.arange(num_pending)
        return np.flatnonzero(required == required[0])

    def _fire(self, pending: PendingRequests, chosen: np.ndarray, version: int, reason: str) -> None:
        counters, n = self.counters, self.num_envs
        lanes, slots, steps = pending.lane[chosen], pending.slot[chosen], pending.step[chosen]
        started = counters.enter("gather")
        num_rows = len(chosen) * n
        self.ring.gather_step(self.obs_names, slots, steps, self.backend.obs_rows)
        env_indices = (lanes[:, None] * n + self.env_offsets).reshape(-1)
        env_steps = np.repeat(pending.fragment_index[chosen] * self.schema.fragment_length + steps, n)
        action, logp = self.backend.infer(version, num_rows, env_indices, env_steps, counters.enter)
        counters.enter("reply")
        self.ring.scatter_step([ACTION, "behaviour_logp"], slots, steps, {ACTION: action, "behaviour_logp": logp})
        self.version_rows[slots, steps] = version
        self.mailboxes.reply(lanes, version)
        ended = counters.enter("wait_request")
        counters.add("batches")
        counters.add("rows", num_rows)
        counters.add("padded_rows", self.backend.padded(num_rows) - num_rows)
        counters.add("fired_" + reason)
        counters.set("policy_version", version)
        counters.observe("batch_size_rows", num_rows)
        counters.observe("service_us", (ended - started) / 1e3)
        for arrival in pending.arrival_ns[chosen].tolist():
            counters.observe("queue_delay_us", (started - arrival) / 1e3)
        if self.adaptive is not None:
            self.adaptive.observe(num_rows, (ended - started) / 1e3)


def main(channel: Channel, settings: dict, fds: list[int]) -> None:
    """Run the server: build the policy from the spec, attach to the arena, answer until told to stop."""
    take_cores(settings["num_threads"])
    message, _ = channel.recv(None)
    spec = EnvSpec.from_dict(message["spec"])
    message, arena_fds = channel.recv(None)
    arena = Arena.attach(arena_fds[0], ArenaLayout.from_dict(message["layout"]))
    policy = message["policy"]
    if settings["is_lockstep"]:
        use_reproducible_kernels()
    backend = TorchBackend(
        spec, policy["model"], policy["normalize_obs"], policy["seed"], WeightBoard(arena),
        settings["batcher"]["max_batch_size"], device=take_device(policy["device"], settings["device_option"]),
        precision=policy["precision"], cuda_graphs=policy["cuda_graphs"],
        warn=lambda text: channel.send({"warning": text}),
    )
    server = InferenceServer(settings, arena, backend)
    server.counters.start(os.getpid())
    channel.send({"ready": True})
    server.run()
