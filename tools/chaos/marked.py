"""CartPole whose every observation says where it comes from, and a network that checks it while it learns.

A mark is `(life, row, sum)`: a random number of this env's construction, the count of its observations, and a checksum
over both and the pole's state. The learner's network sees every batch whole, once, when PPO asks for its values: within
a life, rows must be whole, follow one another without a gap or a repetition, and go on where the batch before ended.

Named in a configuration as `env.id = "marked:make_env"` and `model.kind = "marked:make_model"`, with the folder of
`RLTRAIN_CHAOS` in the environment: there lie the faults that an env takes, and there violations are written.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrain.config.schema import ModelSection
from rltrain.fields import EnvSpec
from rltrain.models.actor_critic import ActorCritic
from rltrain.models.distributions import Distribution

ENV_FAULTS = ("raise", "exit", "segfault", "slow", "hang")
SLOW_S = 1.0
_LOOK_EVERY = 64
_FACTORS = (
    0x9E3779B97F4A7C1, 0xC2B2AE3D27D4EB4, 0x165667B19E3779F, 0xD6E8FEB86659FD9, 0xA0761D6478BD642, 0xE7037ED1A0B428D,
)
_WRAP = 1 << 64


def checksum(life: int, row: int, state: np.ndarray) -> int:
    """Mix life, row and the bits of four floats; int64, wrapping as torch's int64 does."""
    words = [life, row, *state.view(np.int32).tolist()]
    total = sum(word * factor for word, factor in zip(words, _FACTORS, strict=True)) % _WRAP
    return total - _WRAP if total >= _WRAP // 2 else total


class MarkedCartPole(gymnasium.Env):
    """CartPole-v1 with marks, which takes faults laid out for it."""

    def __init__(self) -> None:
        self.inner = gymnasium.make("CartPole-v1")
        whole = np.iinfo(np.int64)
        self.observation_space = spaces.Dict({
            "mark": spaces.Box(whole.min, whole.max, (3,), np.int64), "state": self.inner.observation_space,
        })
        self.action_space = self.inner.action_space
        self.life, self.row = int.from_bytes(os.urandom(4)), -1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin an episode."""
        state, info = self.inner.reset(seed=seed, options=options)
        return self._marked(state), info

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Step, or do what a fault says."""
        if self.row % _LOOK_EVERY == 0:
            self._take_fault()
        state, reward, terminated, truncated, info = self.inner.step(action)
        return self._marked(state), float(reward), terminated, truncated, info

    def _marked(self, state: np.ndarray) -> dict[str, np.ndarray]:
        self.row += 1
        state = np.asarray(state, np.float32)
        return {"mark": np.array([self.life, self.row, checksum(self.life, self.row, state)]), "state": state}

    @staticmethod
    def _take_fault() -> None:
        for fault in ENV_FAULTS:
            try:
                os.unlink(os.path.join(os.environ["RLTRAIN_CHAOS"], fault))
            except FileNotFoundError:
                continue
            if fault == "raise":
                raise RuntimeError("a fault was laid out for this env")
            if fault == "exit":
                os._exit(3)
            if fault == "segfault":
                ctypes.string_at(0)
            time.sleep(SLOW_S if fault == "slow" else 3600)


class MarkChecker(nn.Module):
    """The built-in network over `state`, which looks at the marks of every batch."""

    def __init__(self, spec: EnvSpec):
        super().__init__()
        state = next(leaf for leaf in spec.obs if leaf.name == "obs.state")
        self.inner = ActorCritic(EnvSpec(spec.env_id, (state,), spec.action), ModelSection().model_dump(), False)
        self.inner.initialize(torch.Generator().manual_seed(torch.initial_seed()))
        self.noise_components = self.inner.noise_components
        self.last: dict[int, int] = {}
        """Life -> its last row that was learned from, in this life of the learner."""
        self.num_rows = 0

    def policy(self, obs: dict[str, Tensor]) -> Distribution:
        """As the built-in network."""
        return self.inner.policy({"obs.state": obs["obs.state"]})

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """As the built-in network; the one call of an update that gets the whole batch."""
        if self.training and len(obs["obs.mark"]) > 2:  # not the two rows that a model is tried on
            problem = self._problem(obs["obs.mark"].numpy(), obs["obs.state"].numpy())
            folder = Path(os.environ["RLTRAIN_CHAOS"])
            if problem:
                with open(folder / "violations.txt", "a") as file:
                    file.write(f"learner {os.getpid()}: {problem}\n")
            self.num_rows += len(obs["obs.mark"])
            (folder / f"rows-{os.getpid()}").write_text(str(self.num_rows))
        return self.inner.value({"obs.state": obs["obs.state"]})

    def policy_and_value(
        self, obs: dict[str, Tensor], num_policy_rows: int | None = None
    ) -> tuple[Distribution, Tensor]:
        """As the built-in network."""
        return self.inner.policy_and_value({"obs.state": obs["obs.state"]}, num_policy_rows)

    def _problem(self, mark: np.ndarray, state: np.ndarray) -> str:
        """Say what is wrong with a batch's rows, marks [B, 3] and states [B, 4]; nothing when all is well."""
        words = np.concatenate([mark[:, :2], state.view(np.int32).astype(np.int64)], 1)
        with np.errstate(over="ignore"):
            sums = (words * np.array(_FACTORS, np.int64)).sum(1)
        if (torn := int((sums != mark[:, 2]).sum())) > 0:
            return f"{torn} of {len(mark)} rows are torn"
        for life in np.unique(mark[:, 0]).tolist():
            rows = np.sort(mark[mark[:, 0] == life, 1])
            first, end = int(rows[0]), int(rows[-1])
            if len(rows) != end - first + 1 or (np.diff(rows) != 1).any():
                return f"life {life}: rows {first} to {end} came as {len(rows)} rows"
            if (before := self.last.get(life)) is not None and first != before:
                return f"life {life}: rows go on at {first}, but the batch before ended at {before}"
            self.last[life] = end
        return ""


def make_env() -> gymnasium.Env:
    """Build one env."""
    return MarkedCartPole()


def make_model(spec: EnvSpec) -> nn.Module:
    """Build the network."""
    return MarkChecker(spec)
