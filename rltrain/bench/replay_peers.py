"""Other libraries' replays, in the settings in which each is fastest here and with its own way of adding transitions.

Each is imported when it is measured; none is needed by anything else in rltrain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from rltrain.bench.record import versions
from rltrain.bench.replay_sides import ALPHA, BETA, NUM_ACTIONS, Case, N, Side, T, Transitions
from rltrain.fields import ACTION, OBS


@dataclass(frozen=True)
class Peer:
    """A library that can be measured.

    Args:
        package: the distribution, for `pip install`.
        module: what is imported.
        make: returns its replay, empty.
        observations_kept: copies of every observation that it keeps; 1 or 2.
        guessed_inserts_per_s: how fast it is filled, by the bytes of an observation; for the time left.
    """

    package: str
    module: str
    make: Callable[[Transitions], Side]
    observations_kept: int
    guessed_inserts_per_s: Callable[[int], float]

    @property
    def is_installed(self) -> bool:
        """Whether it can be found; it may still fail to be imported."""
        return find_spec(self.module) is not None

    def num_bytes(self, case: Case) -> int:
        """Memory that its replay takes at least."""
        return case.capacity * self.observations_kept * case.obs_bytes

    @property
    def label(self) -> str:
        """Name and version."""
        return " ".join([self.package, *versions((self.package,)).values()])


def _rows(transitions: Transitions) -> list[dict[str, np.ndarray]]:
    """Fragments as rows: name -> [T * N, ...]; views, but for the flags."""
    shape = (T * N, *transitions.case.shape)
    return [
        {
            "obs": x[OBS][:T].reshape(shape), "next_obs": x[OBS][1:].reshape(shape),
            "act": x[ACTION][:T].ravel(), "rew": x["reward"][:T].ravel(), "done": x["terminated"][:T].ravel(),
        }
        for x in transitions.fragments
    ]


class _Errors(dict[int, np.ndarray]):
    """Batch size -> errors."""

    def __init__(self, transitions: Transitions):
        super().__init__()
        self._transitions = transitions

    def __missing__(self, batch_size: int) -> np.ndarray:
        self[batch_size] = self._transitions.td_error(batch_size)
        return self[batch_size]


class Cpprb:
    """cpprb, next observations not kept twice: faster and half the memory of keeping both."""

    label = ""

    def __init__(self, transitions: Transitions):
        import cpprb

        self.label, case = PEERS["cpprb"].label, transitions.case
        fields: dict[str, dict[str, Any]] = {
            "obs": {"shape": case.shape, "dtype": np.dtype(case.dtype).type}, "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32}, "done": {"dtype": np.float32},
        }
        self._replay = cpprb.PrioritizedReplayBuffer(case.capacity, fields, alpha=ALPHA, next_of="obs")
        self._rows, self._errors, self._turn = _rows(transitions), _Errors(transitions), 0

    def insert(self) -> int:
        """Add T * N transitions in one call."""
        self._replay.add(**self._rows[self._turn % len(self._rows)])
        self._turn += 1
        return T * N

    def pair(self, batch_size: int) -> None:
        """Draw and update."""
        drawn = self._replay.sample(batch_size, BETA)
        self._replay.update_priorities(drawn["indexes"], self._errors[batch_size])


class Tianshou:
    """tianshou, next observations kept as well: faster than without; N buffers in one, a row of N each time."""

    label = ""

    def __init__(self, transitions: Transitions):
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer

        self.label = PEERS["tianshou"].label
        self._replay = PrioritizedVectorReplayBuffer(transitions.case.capacity, N, alpha=ALPHA, beta=BETA)
        self._envs = np.arange(N)
        self._rows = [
            Batch(obs=x[OBS][t], obs_next=x[OBS][t + 1], act=x[ACTION][t], rew=x["reward"][t],
                  terminated=x["terminated"][t], truncated=x["truncated"][t], info=Batch())
            for x in transitions.fragments for t in range(T)
        ]
        self._errors, self._turn = _Errors(transitions), 0

    def insert(self) -> int:
        """Add N transitions, as its collector does."""
        self._replay.add(self._rows[self._turn % len(self._rows)], buffer_ids=self._envs)
        self._turn += 1
        return N

    def pair(self, batch_size: int) -> None:
        """Draw and update."""
        _, items = self._replay.sample(batch_size)
        self._replay.update_weight(items, self._errors[batch_size])


class Torchrl:
    """torchrl: a tensor storage with a prioritized sampler, batches as tensors."""

    label = ""

    def __init__(self, transitions: Transitions):
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

        self.label, capacity = PEERS["torchrl"].label, transitions.case.capacity
        self._replay = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=PrioritizedSampler(capacity, ALPHA, BETA), batch_size=T * N
        )
        self._rows = [
            TensorDict({name: torch.from_numpy(x) for name, x in rows.items()}, batch_size=[T * N])
            for rows in _rows(transitions)
        ]
        self._errors, self._as_tensor, self._turn = _Errors(transitions), torch.from_numpy, 0

    def insert(self) -> int:
        """Add T * N transitions in one call."""
        self._replay.extend(self._rows[self._turn % len(self._rows)])
        self._turn += 1
        return T * N

    def pair(self, batch_size: int) -> None:
        """Draw and update."""
        drawn = self._replay.sample(batch_size)
        self._replay.update_priority(drawn["index"], self._as_tensor(self._errors[batch_size]))


class StableBaselines3:
    """stable-baselines3: uniform, so without weights and priorities; observations kept once; batches as tensors."""

    label = ""

    def __init__(self, transitions: Transitions):
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        case = transitions.case
        self.label = f"{PEERS['stable-baselines3'].label}, uniform"
        low, high = (0, 255) if case.dtype == "uint8" else (-np.inf, np.inf)
        self._replay = ReplayBuffer(
            case.capacity, Box(low, high, case.shape, np.dtype(case.dtype).type), Discrete(NUM_ACTIONS),
            device="cpu", n_envs=N, optimize_memory_usage=True, handle_timeout_termination=False,
        )
        infos: list[dict] = [{}] * N
        self._rows = [
            (x[OBS][t], x[OBS][t + 1], x[ACTION][t], x["reward"][t], x["terminated"][t], infos)
            for x in transitions.fragments for t in range(T)
        ]
        self._turn = 0

    def insert(self) -> int:
        """Add N transitions, as its collector does."""
        self._replay.add(*self._rows[self._turn % len(self._rows)])
        self._turn += 1
        return N

    def pair(self, batch_size: int) -> None:
        """Draw; there is nothing to update."""
        self._replay.sample(batch_size)


PEERS = {
    peer.package: peer
    for peer in (
        Peer("cpprb", "cpprb", Cpprb, 1, lambda obs_bytes: 2e9 / (obs_bytes + 500)),
        Peer("torchrl", "torchrl", Torchrl, 2, lambda obs_bytes: 1e9 / (obs_bytes + 500)),
        Peer("tianshou", "tianshou", Tianshou, 2, lambda obs_bytes: 1.5e8 / (obs_bytes + 1000)),
        Peer("stable-baselines3", "stable_baselines3", StableBaselines3, 1, lambda obs_bytes: 1e9 / (obs_bytes + 500)),
    )
}
"""By the name of the distribution."""
