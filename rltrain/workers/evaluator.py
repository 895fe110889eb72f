"""Evaluation: whole episodes under frozen weights and statistics, in envs of its own.

Two users: the evaluator process of a run (`main`), and `rltrain eval` (`evaluate_checkpoint`).

Owns: its envs, its copy of the policy, its counter row.
Written by: this process. Read by: the supervisor.
Blocks on: the supervisor's request. Unblocked by: the supervisor.
If the peer dies: the kernel kills this process with the supervisor. If it dies, training goes on and it is restarted.

Every env plays a fixed number of episodes, so that short episodes are not preferred. Seeds are apart from training's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rltrain import native
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.config.load import config_from_dict
from rltrain.envs import forked
from rltrain.envs.make import EnvGroup, describe, make_group, make_single, record_episodes
from rltrain.envs.seeding import FIRST_EVAL_ENV_INDEX
from rltrain.errors import CheckpointError, ShutdownRequested
from rltrain.fields import EnvSpec
from rltrain.models import build_model
from rltrain.registry import look_in
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.weights import WeightBoard
from rltrain.workers.channel import Channel
from rltrain.workers.checkpoints import CheckpointStore

WAIT_S = 0.2


@dataclass
class Scores:
    """Episodes played."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Player:
    """Plays episodes with one env group.

    Args:
        group: the envs.
        spec: what they are.
        model: the policy, in eval mode; called with rows on the CPU.
        seed: of the action noise.
        is_stochastic: sample actions instead of taking the most likely one.
    """

    def __init__(self, group: EnvGroup, spec: EnvSpec, model: Any, seed: int, is_stochastic: bool):
        self.group, self.model, self.seed, self.is_stochastic = group, model, seed, is_stochastic
        n = group.num_envs
        self.obs = {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in spec.obs}
        self.action = np.zeros((n, *spec.action.stored_shape), spec.action.stored_dtype)
        self.terminated, self.truncated, self.valid = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
        self.reward, self.episode_return = np.zeros(n, np.float32), np.zeros(n, np.float64)
        self.episode_length = np.zeros(n, np.int64)
        self.noise = np.zeros((n, model.noise_components), np.float32)
        self.env_indices = FIRST_EVAL_ENV_INDEX + np.arange(n, dtype=np.int64)
        self.env_steps = 0

    def play(self, num_episodes: int, on_step: Callable[[int], None] = lambda num_done: None) -> Scores:
        """Play `num_episodes`, spread evenly over the envs. `on_step` is called with the episodes done so far."""
        n = self.group.num_envs
        quota = np.full(n, num_episodes // n)
        quota[: num_episodes % n] += 1
        scores = Scores()
        self.group.reset(self.obs)
        while quota.any():
            self.act()
            self.group.step(
                self.action, self.obs, self.reward, self.terminated, self.truncated, self.valid,
                self.episode_return, self.episode_length,
            )
            self.env_steps += 1
            ended = (self.terminated | self.truncated) & (quota > 0)
            for i in np.flatnonzero(ended):
                scores.returns.append(float(self.episode_return[i]))
                scores.lengths.append(int(self.episode_length[i]))
                quota[i] -= 1
            on_step(len(scores.returns))
        return scores

    @torch.inference_mode()
    def act(self) -> None:
        """Choose the actions for the present observations."""
        policy = self.model.policy({name: torch.from_numpy(rows) for name, rows in self.obs.items()})
        if self.is_stochastic:
            steps = np.full(len(self.env_indices), self.env_steps, np.int64)
            native.uniform(self.seed, self.env_indices, steps, self.noise.shape[1], self.noise)
            chosen = policy.sample(torch.from_numpy(self.noise))
        else:
            chosen = policy.mode()
        self.action[...] = chosen.numpy()


def evaluate_checkpoint(
    path: Path, episodes: int, stochastic: bool, video_dir: Path | None, seed: int,
    progress: Callable[[int], None] = lambda num_done: None,
) -> dict:
    """Evaluate a saved policy.

    Args:
        path: a checkpoint, or a run folder (its newest checkpoint).
        episodes: how many to play, >= 1.
        stochastic: sample actions.
        video_dir: record each episode there, or None.
        seed: of the envs and the noise.
        progress: called with the number of episodes done.

    Returns:
        `return_mean`, `return_std` (population), `length_mean`, `returns`, `lengths`, `seed`, `stochastic`, `env_id`,
        `checkpoint` (the file that was played), `env_steps`, `seconds`, `warnings`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or has lost its statistics.
    """
    started = time.monotonic()
    forked.watch()
    torch.set_num_threads(1)
    checkpoint, warnings, file = CheckpointStore.load(path)
    config = config_from_dict(json.loads(checkpoint["config"]))
    look_in(config.run.code_dir)
    env = config.env.model_dump(mode="json")
    if video_dir is None:
        group = make_group(env, min(episodes, config.eval.num_envs), seed, FIRST_EVAL_ENV_INDEX)
    else:
        single = record_episodes(make_single(env, render_mode="rgb_array"), video_dir)
        group = make_group(env, 1, seed, FIRST_EVAL_ENV_INDEX, [single])
    try:
        spec = describe(env, group)
        model = load_policy(checkpoint, spec)
        scores = Player(group, spec, model, seed, stochastic).play(episodes, progress)
    finally:
        forked.end_copy()
        group.close()
    return {
        **summarise(scores),
        "returns": scores.returns,
        "lengths": scores.lengths,
        "env_id": spec.env_id,
        "checkpoint": str(file),
        "env_steps": checkpoint["env_steps"],
        "seconds": time.monotonic() - started,
        "warnings": warnings,
    }


def load_policy(checkpoint: dict, spec: EnvSpec) -> nn.Module:
    """Build the model of a checkpoint, its weights and frozen statistics loaded.

    Raises:
        CheckpointError: an entry is missing or has another shape.
    """
    config = config_from_dict(json.loads(checkpoint["config"]))
    model = build_model(spec, config.model_settings(), config.env.normalize_obs)
    try:
        model.load_state_dict(checkpoint["model"])
    except RuntimeError as error:
        raise CheckpointError(f"The checkpoint does not fit its own configuration: {error}") from error
    return model.eval()


def summarise(scores: Scores) -> dict[str, float]:
    """Return mean and population standard deviation of the returns, and the mean length in env steps."""
    return {
        "return_mean": float(np.mean(scores.returns)),
        "return_std": float(np.std(scores.returns)),
        "length_mean": float(np.mean(scores.lengths)),
    }


def main(channel: Channel, settings: dict, fds: list[int]) -> None:
    """Run the evaluator of a run: play when asked, with the newest weights on the board."""
    torch.set_num_threads(1)
    message, _ = channel.recv(None)
    spec = EnvSpec.from_dict(message["spec"])
    message, arena_fds = channel.recv(None)
    arena = Arena.attach(arena_fds[0], ArenaLayout.from_dict(message["layout"]))
    control, board = Control(arena), WeightBoard(arena)
    counters = CounterBoard(arena).row(settings["counter_row"])
    counters.start(os.getpid())
    options, policy = settings["eval"], message["policy"]
    model = build_model(spec, policy["model"], policy["normalize_obs"]).eval()
    flat = FlatParameters(model)
    channel.send({"ready": True})
    counters.enter("wait_work")
    while not control.stop:
        request = channel.recv(WAIT_S)
        counters.beat()
        if request is None:
            continue
        while board.read(None, flat.host_bytes) is None and not control.stop:  # overwritten while it was read
            board.wait_version(0, WAIT_S)
        flat.load(flat.host_bytes)
        num_envs = min(options["num_envs"], options["episodes"])
        group = make_group(settings["env"], num_envs, settings["seed"], FIRST_EVAL_ENV_INDEX)

        def watch(num_done: int) -> None:
            counters.enter("env_step")
            if control.stop:
                raise ShutdownRequested

        try:
            player = Player(group, spec, model, settings["seed"], options["stochastic"])
            scores = player.play(options["episodes"], watch)
        except ShutdownRequested:
            return
        finally:
            forked.end_copy()
            group.close()
        counters.add("evaluations")
        counters.add("episodes", len(scores.returns))
        counters.add("env_steps", sum(scores.lengths))
        figures = summarise(scores)
        values = {
            "eval/return_mean": figures["return_mean"],
            "eval/return_std": figures["return_std"],
            "eval/episode_length_mean_steps": figures["length_mean"],
            "eval/episodes": len(scores.returns),
        }
        channel.send({"evaluation": values, "env_steps": request[0]["evaluate"]})
        counters.enter("wait_work")
