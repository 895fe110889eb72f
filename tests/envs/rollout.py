"""Steps an env group for some rows, for tests."""

from __future__ import annotations

import numpy as np

from rltrain.config.schema import EnvSection
from rltrain.envs.make import EnvGroup, describe, make_group
from rltrain.fields import ActionSpec, FragmentSchema

STALE = 77
OUTPUTS = ("reward", "terminated", "truncated", "valid", "episode_return", "episode_length")


def section(env_id: str, **options) -> dict:
    """Return an env section as a dict."""
    return EnvSection(id=env_id, **options).model_dump()


def toy(name: str, **kwargs) -> dict:
    """Return the section of a toy env; `max_episode_steps` and the like belong into the section itself."""
    return section(f"tests.toy_envs:{name}", kwargs=kwargs)


def random_actions(spec: ActionSpec, num_rows: int, num_envs: int, seed: int = 0) -> np.ndarray:
    """Return stored actions [T, N, ...]."""
    rng = np.random.default_rng(seed)
    shape = (num_rows, num_envs, *spec.stored_shape)
    if spec.kind == "box":
        return rng.uniform(-1, 1, shape).astype(np.float32)
    high = np.array(spec.nvec) if spec.stored_shape else spec.nvec[0]
    return rng.integers(0, high, shape)


class Rollout:
    """A group and the rows it wrote: `rows[name]` is [T+1, N, ...]; a new `run` goes on where the last one ended.

    Args:
        env: env section.
        num_envs: N.
        seed: the run's seed.
        first_env_index: number of the first env.
    """

    def __init__(self, env: dict, num_envs: int = 1, seed: int = 0, first_env_index: int = 0):
        self._take(make_group(env, num_envs, seed, first_env_index), env)

    @classmethod
    def of(cls, group: EnvGroup, env: dict) -> Rollout:
        """Return the rollout of a group that was built elsewhere."""
        made = cls.__new__(cls)
        made._take(group, env)
        return made

    def _take(self, group: EnvGroup, env: dict) -> None:
        self.group = group
        self.spec = describe(env, group)
        self.num_envs = num_envs = group.num_envs
        self.carry = {leaf.name: np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in self.spec.obs}

    def start(self) -> Rollout:
        """Reset."""
        self.group.reset(self.carry)
        return self

    def run(self, num_rows: int, actions: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Step `num_rows` times, with random actions unless given, and return the rows."""
        schema = FragmentSchema.for_env(self.spec, num_rows, self.num_envs)
        rows = {field.name: np.zeros(schema.array_shape(field), field.dtype) for field in schema.fields}
        for name in OUTPUTS:
            rows[name][...] = STALE  # slots are used again: what a group does not write is an older fragment's
        rows["action"][:-1] = random_actions(self.spec.action, num_rows, self.num_envs) if actions is None else actions
        for name, first in self.carry.items():
            rows[name][0] = first
        for t in range(num_rows):
            obs = {name: rows[name][t + 1] for name in self.carry}
            self.group.step(rows["action"][t], obs, *(rows[name][t] for name in OUTPUTS))
        for name in self.carry:
            self.carry[name][...] = rows[name][num_rows]
        return {name: array if name in self.carry else array[:num_rows] for name, array in rows.items()}


def rollout(env: dict, num_rows: int, num_envs: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the rows of a fresh group."""
    made = Rollout(env, num_envs, seed).start()
    try:
        return made.run(num_rows)
    finally:
        made.group.close()
