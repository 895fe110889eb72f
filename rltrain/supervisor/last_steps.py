"""Where the envs of an actor stood when it died, and whether one of them kills it again and again.

Owns: the env that each death of an actor came from. Called by `recovery.py` once it has reaped one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rltrain.envs.seeding import env_seed, life_seed
from rltrain.fields import ACTION
from rltrain.supervisor.memory import RunMemory


@dataclass(frozen=True)
class LastStep:
    """The step that an actor was in.

    Args:
        env_index: number of the env in the whole run; of a vector env, of its first.
        num_envs: how many were stepped at once: 1, or the size of the vector env.
        seed: what the first reset of that env was seeded with.
        env_steps: number of the step within this life of the env, counted from 1; 0 for a reset.
        action: as the policy chose it, of all envs that were stepped.
    """

    env_index: int
    num_envs: int
    seed: int
    env_steps: int
    action: Any

    @property
    def env(self) -> str:
        """Which env, in words."""
        if self.num_envs == 1:
            return f"env index {self.env_index}"
        return f"the vector env of env indices {self.env_index} to {self.env_index + self.num_envs - 1}"

    def __str__(self) -> str:
        if self.env_steps == 0:
            return f"while resetting {self.env} (seed {self.seed})"
        where = f"while stepping {self.env} (seed {self.seed}), step {self.env_steps} of this env"
        return f"{where}, action {self.action!r:.200}"


class LastSteps:
    """Reads and remembers them.

    Args:
        memory: of the run.
        seed: `run.seed`.
    """

    def __init__(self, memory: RunMemory, seed: int):
        self.memory, self.seed = memory, seed
        self._envs: dict[str, list[int | None]] = {}

    def of(self, name: str, life: int) -> LastStep | None:
        """Return the step that a dead actor was in, None where it was not in an env; before its slots are taken back.

        Args:
            name: of the actor.
            life: which of those that have had its place it was; decides on the seeds.
        """
        row = self.memory.rows[name]
        last = None
        if row.state == "env_step":
            env_index, num_envs, env_steps, slot, step = row.stepping.tolist()
            actions = self.memory.ring.field(ACTION)[slot, step]
            first = env_index % len(actions)
            action = actions[first] if num_envs == 1 else actions
            seed = env_seed(life_seed(self.seed, life), env_index)
            last = LastStep(env_index, num_envs, seed, env_steps, action.tolist())
        self._envs.setdefault(name, []).append(last.env_index if last else None)
        return last

    def verdict(self, name: str, last: LastStep | None, num_deaths: int) -> str:
        """Say, in a sentence after a space, that the last deaths of this actor all came from one env; or nothing."""
        envs = self._envs[name][-num_deaths:]
        if last is None or len(envs) < 2 or set(envs) != {last.env_index}:
            return ""
        return f" All {len(envs)} deaths came from {last.env}: look at that environment, not at this machine."
