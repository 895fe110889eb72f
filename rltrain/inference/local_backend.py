"""Local inference: the actor runs the policy itself, one group at a time.

What many trainers do; worth it for tiny policies on few cores, where a hand-over between processes costs more than
the forward pass. Same `post` and `wait_reply` as the mailboxes, so that the actor's loop is one and the same.
"""

from __future__ import annotations

import numpy as np
import torch

from rltrain import native
from rltrain.errors import ShutdownRequested
from rltrain.fields import ACTION, EnvSpec
from rltrain.inference.torch_backend import TorchBackend
from rltrain.shm.arena import Arena
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterRow
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.weights import WeightBoard

_KEPT_BYTES = 1 << 26
"""The policy's own; what an env frees is not for an actor to keep, of which there may be many."""


class LocalPolicy:
    """Answers an actor's requests in its own process.

    Args:
        arena: the run's arena.
        spec: what the env is.
        policy: `model`, `normalize_obs`, `seed`, `precision`.
        counters: the actor's row. One object writes a row: each adds up the time since it last did.
    """

    def __init__(self, arena: Arena, spec: EnvSpec, policy: dict, counters: CounterRow):
        torch.set_num_threads(1)
        native.keep_memory(_KEPT_BYTES)
        self.schema = arena.layout.schema
        self.ring = TrajectoryRing(arena)
        self.board = WeightBoard(arena)
        self.control = Control(arena)
        self.counters = counters
        n = self.schema.num_envs
        self.backend = TorchBackend(
            spec, policy["model"], policy["normalize_obs"], policy["seed"], self.board, n, precision=policy["precision"]
        )
        self.env_offsets = np.arange(n, dtype=np.int64)
        self.action = self.ring.field(ACTION)
        self.logp = self.ring.field("behaviour_logp")
        self.version = self.ring.field("policy_version")
        self.obs = {name: self.ring.field(name) for name in self.backend.obs_rows}
        self.pending: dict[int, tuple[int, int, int, int | None]] = {}

    def post(self, lane: int, slot: int, step: int, fragment_index: int, required_version: int | None) -> None:
        """Note the request; the forward pass runs in `wait_reply`."""
        self.pending[lane] = (slot, step, fragment_index, required_version)

    def wait_reply(self, lane: int, timeout_s: float) -> bool:
        """Choose the lane's actions and write them into its slot; False when the weights did not come in time."""
        slot, step, fragment_index, required = self.pending[lane]
        self.counters.enter("load_weights")
        version = self.backend.load(self.backend.best_version(required))
        if version is None:
            self.board.wait_version(0 if required is None else required, timeout_s)
            if self.control.stop:
                raise ShutdownRequested
            return False
        self.counters.enter("forward")
        n = self.schema.num_envs
        for name, rows in self.backend.obs_rows.items():
            rows[:n] = self.obs[name][slot, step]
        env_steps = np.full(n, fragment_index * self.schema.fragment_length + step, np.int64)
        action, logp = self.backend.infer(version, n, lane * n + self.env_offsets, env_steps)
        self.action[slot, step] = action
        self.logp[slot, step] = logp
        self.version[slot, step] = version
        return True
