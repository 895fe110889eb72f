"""The strong baseline: one process that collects a fragment, learns from it, and repeats; nothing is overlapped.

    python -m rltrain.bench.conventional CONFIG --seconds S --threads N [--plain] [--to-target] [--set s.k=value ...]

Same envs, network, noise and update as a run of the configuration in `sync`, with the envs of all its groups in one
group, and without processes, ring, server and weights on their way. Envs write straight into the batch; on a CPU
nothing is copied but the actions. It has rltrain's own fast layers and memory too; `--plain` does without: what a loop
of torch's operations reaches, as people write it. Prints one JSON line: `env_steps_per_s`, from the end of the first
update on; `busy_share` and, part of it, `update_share`: of that time, what went into policy forwards and updates, and
into updates alone; `seconds_to_target`, from process start, or null; `return_mean` of the last episodes, or null.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from rltrain import native
from rltrain.algos import load_algorithm
from rltrain.algos.precision import forward_precision
from rltrain.algos.schedules import progress_at
from rltrain.algos.train_state import TrainState
from rltrain.bench.alone import answer, measure_alone, parser
from rltrain.bench.trial import ENDLESS
from rltrain.config.schema import Config
from rltrain.envs.make import describe, make_group
from rltrain.errors import ConfigError
from rltrain.fields import ACTION, FragmentSchema
from rltrain.models import build_model, compile_model, native_layers
from rltrain.workers.device import resolve_device, take_cores
from rltrain.workers.episodes import EpisodeWindow

REWARD_ROWS = ("reward", "terminated", "truncated", "valid", "episode_return", "episode_length")


class ConventionalLoop:
    """Collects and learns in turn.

    Args:
        config: resolved; an algorithm that learns from fresh trajectories.
        is_plain: whether a minibatch is never cut.

    Raises:
        ConfigError: the algorithm learns from a replay.
    """

    def __init__(self, config: Config, is_plain: bool = False):
        if config.algo.chosen.source != "fresh":
            raise ConfigError(
                f'algo.name = "{config.algo.name}" learns from a replay, which the conventional loop has none of. '
                'Accepted: "ppo" and "appo".'
            )
        self.config = config
        lanes = int(config.actors.num_actors) * config.actors.groups_per_actor
        num_envs = lanes * config.actors.envs_per_group
        self.length, self.seed = config.pipeline.fragment_length, config.run.seed
        torch.manual_seed(self.seed)
        self.device = resolve_device(config.learner.device)
        env = config.env.model_dump(mode="json")
        self.group = make_group(env, num_envs, self.seed, 0)
        spec = describe(env, self.group)
        model: Any = build_model(spec, config.model_settings(), config.env.normalize_obs, seed=self.seed)
        if config.learner.compile:
            compile_model(model)
        self.state = TrainState(model.to(self.device), config, num_envs)
        self.state.rows.is_cut &= not is_plain
        self.update = load_algorithm(config.algo.name)(config.algo.chosen, config.learner)
        self.episodes = EpisodeWindow(config.run.target_window)
        self.env_steps, self.num_batches = 0, 0
        self.forward_s = self.update_s = 0.0
        self._lanes = np.zeros(1, np.int64)
        self._env_indices, self._steps = np.arange(num_envs, dtype=np.int64), np.zeros(num_envs, np.int64)
        self._obs_names = [leaf.name for leaf in spec.obs]
        self._make_buffers(FragmentSchema.for_env(spec, self.length, num_envs), model.noise_components)
        self.group.reset({name: self._host[name].numpy()[0] for name in self._obs_names})

    def _make_buffers(self, schema: FragmentSchema, noise_components: int) -> None:
        """Allocate the batch, and views of each step of it: made once, as making them costs more than a small step."""
        is_pinned = self.device.type == "cuda"
        fields = [field for field in schema.fields if field.per_env]
        self._host = {f.name: torch.from_numpy(np.zeros(schema.array_shape(f), f.dtype)) for f in fields}
        noise = torch.zeros((schema.num_envs, noise_components))
        if is_pinned:
            self._host = {name: tensor.pin_memory() for name, tensor in self._host.items()}
            noise = noise.pin_memory()
        self._noise, self._noise_rows = noise, noise.numpy()
        arrays = {name: tensor.numpy() for name, tensor in self._host.items()}
        self._arrays = arrays
        learned = [f.name for f in fields if not f.name.startswith("episode_")]
        self._batch = {name: self._host[name].to(self.device) for name in learned}
        self._collected_on_host = [name for name in REWARD_ROWS if name in learned]
        self._views = [
            (
                {name: self._host[name][t] for name in self._obs_names},
                {name: self._batch[name][t] for name in self._obs_names},
                {name: arrays[name][t + 1] for name in self._obs_names},
                tuple(arrays[name][t] for name in REWARD_ROWS),
            )
            for t in range(self.length)
        ]

    @torch.inference_mode()
    def collect(self) -> None:
        """Fill the batch with T steps of every env."""
        state, batch, host_action = self.state, self._batch, self._host[ACTION]
        is_host, precision = self.device.type == "cpu", self.config.learner.precision
        state.model.eval()
        for t, (host_obs, obs, next_obs, outputs) in enumerate(self._views):
            started = time.perf_counter()
            native.uniform(
                self.seed, self._env_indices, self._steps, self._noise_rows.shape[1], self._noise_rows
            )
            noise = self._noise
            if not is_host:
                for name, rows in obs.items():
                    rows.copy_(host_obs[name], non_blocking=True)
                noise = noise.to(self.device, non_blocking=True)
            with forward_precision(self.device, precision):
                policy = state.model.policy(obs)
            action = policy.sample(noise)
            batch[ACTION][t] = action
            batch["behaviour_logp"][t] = policy.log_prob(action)
            if not is_host:
                host_action[t] = action  # waits for the device
            stepped = time.perf_counter()
            self.forward_s += stepped - started
            self.group.step(self._arrays[ACTION][t], next_obs, *outputs)
            self._steps += 1
        if not is_host:
            for name in self._obs_names:
                batch[name][self.length].copy_(self._host[name][self.length], non_blocking=True)
            for name in self._collected_on_host:
                batch[name].copy_(self._host[name], non_blocking=True)

    def learn(self) -> None:
        """Update on the batch, and begin the next one where it ends."""
        started = time.perf_counter()
        self.state.model.train()
        progress = progress_at(self.env_steps, self.config.run.total_env_steps)
        self.update(self.state, self._batch, progress, self._lanes)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.update_s += time.perf_counter() - started
        rows = {name: self._arrays[name][: self.length] for name in REWARD_ROWS}
        ended = rows["terminated"] | rows["truncated"]
        self.episodes.add(rows["episode_return"][ended], rows["episode_length"][ended])
        self.env_steps += int(np.count_nonzero(rows["valid"]))
        self.num_batches += 1
        for name in self._obs_names:
            self._arrays[name][0] = self._arrays[name][self.length]

    def has_reached_target(self) -> bool:
        """Whether the mean return of the last episodes is what `run.target_return` asks for."""
        target = self.config.run.target_return
        return target is not None and self.episodes.is_full and self.episodes.return_mean >= target

    def run(self, seconds: float, to_target: bool = False) -> dict[str, float | None]:
        """Train until the time is over, the env steps are learned from, or the target is reached.

        Args:
            seconds: from now on; the update then at work is finished, and the second one in any case.
            to_target: whether to end at `run.target_return`.

        Returns:
            What the module prints.
        """
        began = time.perf_counter()
        end_by = began + seconds
        first: tuple[float, int, float, float] | None = None
        reached_s: float | None = None
        now = began
        while now < end_by or self.num_batches < 2:
            self.collect()
            self.learn()
            now = time.perf_counter()
            if first is None:
                first = (now, self.env_steps, self.forward_s, self.update_s)
            if to_target and self.has_reached_target():
                reached_s = time.time() - psutil.Process().create_time()
                break
            if self.env_steps >= self.config.run.total_env_steps:
                break
        assert first is not None, "the loop runs at least once"
        since, env_steps, forward_s, update_s = first
        spent = now - since
        update_share = (self.update_s - update_s) / spent if spent > 0 else None
        mean = self.episodes.return_mean
        return {
            "env_steps_per_s": (self.env_steps - env_steps) / spent if spent > 0 else None,
            "busy_share": None if update_share is None else (self.forward_s - forward_s) / spent + update_share,
            "update_share": update_share,
            "seconds_to_target": reached_s,
            "return_mean": None if mean != mean else mean,
        }

    def close(self) -> None:
        """Close the envs."""
        self.group.close()


def conventional(
    config: Path, overrides: Mapping[str, object], seconds: float, num_threads: int, to_target: bool = False,
    is_plain: bool = False,
) -> dict[str, float | None]:
    """Run the loop in a process of its own.

    Args:
        config: TOML file.
        overrides: option path -> value, over the file's; as for `bench.trial.run_trial`.
        seconds: ends after that long, from when the envs are there.
        num_threads: torch threads.
        to_target: also end at `run.target_return`, and at `run.total_env_steps`; else by the time only.
        is_plain: without rltrain's layers in C, rows in parts and kept memory.

    Returns:
        `env_steps_per_s`, `busy_share`, `update_share`, `seconds_to_target`, `return_mean`: see the module.

    Raises:
        TrialError: it failed; the message has the last lines that it printed.
        KeyboardInterrupt: it was interrupted; the process has ended.
    """
    options: dict[str, object] = {} if to_target else {"run.total_env_steps": ENDLESS}
    options |= overrides
    arguments = ["--seconds", str(seconds), "--threads", str(num_threads), *(["--to-target"] if to_target else [])]
    arguments += ["--plain"] if is_plain else []
    return measure_alone(
        "rltrain.bench.conventional", config, arguments, options, f"the conventional loop on {config}"
    )


def main() -> int:
    """Run the loop and print one JSON line."""
    options = parser(__doc__)
    options.add_argument("--threads", type=int, required=True)
    options.add_argument("--to-target", action="store_true")
    options.add_argument("--plain", action="store_true")
    args = options.parse_args()
    if args.plain:
        torch.set_num_threads(args.threads)
        native_layers.LARGEST_LAYER = 0
    else:
        take_cores(args.threads)
    make = partial(ConventionalLoop, is_plain=args.plain)
    return answer(args, make, lambda loop: loop.run(args.seconds, args.to_target))


if __name__ == "__main__":
    sys.exit(main())
