"""Each stage of a configuration alone on this machine, in a process of its own: env step, policy, update, copies.

    python -m rltrain.bench.stages CONFIG --seconds S [--set section.key=value ...]

Prints one JSON line, seconds of one env step of each: `env`, one actor stepping its groups in turn, and `env_cpu`, CPU
time with all threads of an env's own; `inference`, rows -> seconds of a row in the server's own forward with its
sampling; `update`, all passes with the learner's threads, and `update_cpu` with one; `transfer`, the copies of the
server's gathers and of the prefetch thread; `publish`, a version's share. Each is measured for `--seconds`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrain.algos.flat_parameters import FlatParameters
from rltrain.bench.alone import answer, measure_alone, parser
from rltrain.bench.conventional import ConventionalLoop
from rltrain.config.schema import Config
from rltrain.envs.make import describe, make_group
from rltrain.fields import FragmentSchema
from rltrain.inference.torch_backend import TorchBackend
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.weights import WeightBoard
from rltrain.workers.device import resolve_device, take_cores

NUM_STAGES = 6
"""Measured one after the other; for the time left."""
_COLLECT = 2
"""Batches that are collected before the update is measured on the last."""


@dataclass(frozen=True)
class Stages:
    """Seconds of one env step in each stage.

    Args:
        env: of one actor.
        env_cpu: CPU time of the same, with the threads that an env has of its own.
        inference: rows of a batch -> seconds of one row.
        update: all passes, with the learner's threads.
        update_cpu: the same with one thread.
        transfer: gathers of observations, scatters of actions, gathers of fragments.
        publish: of the weights.
    """

    env: float
    env_cpu: float
    inference: dict[int, float]
    update: float
    update_cpu: float
    transfer: float
    publish: float

    @property
    def best_inference(self) -> float:
        """Seconds of a row in the batch size that suits the server best."""
        return min(self.inference.values())

    def limit(
        self, num_actors: int, cores: int, is_policy_on_cpu: bool = True, is_learner_on_cpu: bool = True
    ) -> tuple[float, str]:
        """Return the most env steps a second that the pipeline can learn, and what binds.

        What each stage can do by itself, and where they share cores what these can do in all. Source: DESIGN, budget.

        Args:
            num_actors: processes that step envs.
            cores: usable ones.
            is_policy_on_cpu: whether the policy runs on the same cores.
            is_learner_on_cpu: whether the update does.
        """
        policy = self.best_inference if is_policy_on_cpu else 0.0
        computing = self.env_cpu + policy + (self.update_cpu if is_learner_on_cpu else 0.0)
        limits = {
            "envs": num_actors / self.env,
            "inference": 1 / self.best_inference,
            "update": 1 / self.update,
            "cores": cores / computing,
        }
        bound = min(limits, key=lambda name: limits[name])
        return limits[bound], bound


def measure_stages(config: Path, overrides: Mapping[str, object], seconds: float) -> Stages:
    """Measure in a process of its own.

    Args:
        config: TOML file.
        overrides: option path -> value, over the file's.
        seconds: of each stage.

    Raises:
        TrialError: it failed; the message has the last lines that it printed.
    """
    found = measure_alone(
        "rltrain.bench.stages", config, ["--seconds", str(seconds)], overrides, f"measuring the stages of {config}"
    )
    return Stages(**{**found, "inference": {int(rows): value for rows, value in found["inference"].items()}})


class _Bench:
    """The stages of one resolved configuration.

    Raises:
        ConfigError: the algorithm learns from a replay.
    """

    def __init__(self, config: Config, seconds: float):
        self.config, self.seconds = config, seconds
        take_cores(1)
        self.loop = ConventionalLoop(config)
        self.num_envs = config.actors.envs_per_group
        self.num_lanes = int(config.actors.num_actors) * config.actors.groups_per_actor
        self.steps_per_batch = self.num_lanes * self.num_envs * config.pipeline.fragment_length
        env = config.env.model_dump(mode="json")
        self.groups = [
            make_group(env, self.num_envs, config.run.seed, (self.num_lanes + i) * self.num_envs)
            for i in range(config.actors.groups_per_actor)
        ]
        self.spec = describe(env, self.groups[0])
        self.schema = FragmentSchema.for_env(self.spec, config.pipeline.fragment_length, self.num_envs)
        self.flat = FlatParameters(self.loop.state.model)
        layout = ArenaLayout.plan(
            self.schema, 2 * self.num_lanes, 1, self.num_lanes, self.flat.weight_bytes, 0, ("learner",)
        )
        self.arena = Arena.create(layout)
        self.ring, self.board = TrajectoryRing(self.arena), WeightBoard(self.arena)

    def measure(self) -> dict[str, Any]:
        """Return what the module prints."""
        threads = int(self.config.learner.num_threads)
        env, env_cpu = self._env()
        for _ in range(_COLLECT):
            self.loop.collect()
        update = self._update(threads)
        one_thread = update if threads == 1 else self._update(1)
        torch.set_num_threads(1)
        publish = self._publish()
        return {
            "env": env, "env_cpu": env_cpu, "inference": self._inference(), "update": update, "update_cpu": one_thread,
            "transfer": self._transfer(), "publish": publish,
        }  # fmt: skip

    def _per_call(self, call: Callable[[], object]) -> float:
        """Seconds of one call, the first one not counted."""
        call()
        began, number = time.perf_counter(), 0
        while (now := time.perf_counter()) < began + self.seconds or number < 2:
            call()
            number += 1
        return (now - began) / number

    def _env(self) -> tuple[float, float]:
        """By the clock and by CPU time. Actions are random: stepping those of a policy costs the same."""
        n, action = self.num_envs, self.spec.action
        rng = np.random.default_rng(0)
        if action.kind == "box":
            chosen = rng.uniform(-1, 1, (64, n, *action.stored_shape)).astype(action.stored_dtype)
        else:
            high = np.array(action.nvec).reshape(action.stored_shape)
            chosen = rng.integers(0, high, (64, n, *action.stored_shape)).astype(action.stored_dtype)
        obs = {f.name: np.zeros((n, *f.shape), f.dtype) for f in self.schema.fields if f.name.split(".")[0] == "obs"}
        dtypes = {f.name: f.dtype for f in self.schema.fields}
        names = ("reward", "terminated", "truncated", "valid", "episode_return", "episode_length")
        outputs = [np.zeros(n, dtypes[name]) for name in names]
        for group in self.groups:
            group.reset(obs)
        calls = self._counted(chosen, obs, outputs)
        num_valid = 0

        def step() -> None:
            nonlocal num_valid
            num_valid += next(calls)

        step()
        cpu_began, valid_before = time.process_time(), num_valid
        began = time.perf_counter()
        self._per_call(step)
        spent, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        num = max(1, num_valid - valid_before)
        return spent / num, cpu / num

    def _counted(
        self, chosen: np.ndarray, obs: dict[str, np.ndarray], outputs: list[np.ndarray]
    ) -> Iterator[int]:
        number = 0
        while True:
            self.groups[number % len(self.groups)].step(chosen[number % len(chosen)], obs, *outputs)
            number += 1
            yield int(np.count_nonzero(outputs[3]))

    def _update(self, num_threads: int) -> float:
        rows = self.loop.state.rows
        rows.num_threads = num_threads if rows.num_threads > 1 else 1
        torch.set_num_threads(1 if rows.num_threads > 1 else num_threads)
        return self._per_call(self.loop.learn) / self.steps_per_batch

    def _publish(self) -> float:
        versions = iter(range(10**9))
        return self._per_call(lambda: self.board.publish(next(versions), self.flat.publish_view())) / (
            self.steps_per_batch
        )

    def _inference(self) -> dict[int, float]:
        """The server's forward, from staged rows to actions on the host."""
        config, largest = self.config, int(self.config.pipeline.max_batch_size)
        backend = TorchBackend(
            self.spec, config.model_settings(), config.env.normalize_obs, config.run.seed, self.board, largest,
            resolve_device(config.server_device()), config.learner.precision, config.pipeline.cuda_graphs,
        )
        version = self.board.latest_version
        backend.load(version)
        sizes = {min(largest, self.num_envs * groups) for groups in (1, 2, 4, 8, 16, self.num_lanes)}
        found = {}
        for rows in sorted(sizes):
            envs, steps = np.arange(rows, dtype=np.int64), np.zeros(rows, np.int64)
            found[rows] = self._per_call(partial(backend.infer, version, rows, envs, steps)) / rows
        return found

    def _transfer(self) -> float:
        """What the server and the prefetch thread copy for one env step."""
        slots = np.arange(self.num_lanes, dtype=np.int64)
        steps = np.zeros(self.num_lanes, np.int64)
        names = [leaf.name for leaf in self.spec.obs]
        rows = self.num_lanes * self.num_envs
        staged = {leaf.name: np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in self.spec.obs}
        gather = self._per_call(lambda: self.ring.gather_step(names, slots, steps, staged)) / rows
        length = self.schema.fragment_length + 1
        batch = {
            f.name: np.zeros((length, rows if f.per_env else self.num_lanes, *f.shape), f.dtype)
            for f in self.schema.fields
        }
        fragment = self._per_call(lambda: self.ring.gather_fragment(0, 0, batch))
        return gather + fragment / (self.num_envs * self.schema.fragment_length)

    def close(self) -> None:
        """Close the envs."""
        self.loop.close()
        for group in self.groups:
            group.close()


def main() -> int:
    """Measure and print one JSON line."""
    args = parser(__doc__).parse_args()
    return answer(args, lambda config: _Bench(config, args.seconds), _Bench.measure)


if __name__ == "__main__":
    sys.exit(main())
