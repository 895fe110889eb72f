"""What the learner does with a batch of fragments: learn from it at once, or put it into the replay first.

Owns: the algorithm and what only it needs. Called by the learner, which knows but this protocol.
Written by, read by: the learner's process alone.
Blocks on, unblocked by: see `replay_training.py`; on-policy training waits for nothing.
If the peer dies: there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from pathlib import Path
from typing import Any, Protocol

import torch

from rltrain.algos import load_algorithm
from rltrain.algos.schedules import progress_at
from rltrain.algos.train_state import TrainState
from rltrain.config.schema import Config
from rltrain.errors import TrainingError
from rltrain.fields import EnvSpec
from rltrain.models import build_model, compile_model
from rltrain.replay.fragments import FragmentReplay
from rltrain.shm.arena import Arena
from rltrain.shm.counters import CounterRow
from rltrain.workers.prefetch import Batch
from rltrain.workers.replay_training import ReplayTraining

log = logging.getLogger(__name__)
Metrics = dict[str, torch.Tensor]


class Training(Protocol):
    """How one kind of algorithm learns."""

    batch_device: torch.device
    """Where it wants the fragments."""
    checkpoint_bytes: int
    """About what `state_dict` holds, on the large side."""

    @property
    def held_bytes(self) -> int:
        """Memory that is free again once `attach` has returned."""

    def attach(
        self, arena: Arena, counters: CounterRow, run_folder: Path, continued_lanes: Set[int]
    ) -> list[str]:
        """Get ready, once the run's memory and folder are there; returns what the user should know.

        The envs of `continued_lanes` go on where a checkpoint left them, those of the others are reset.
        """

    def before_publication(self, env_steps: int) -> None:
        """Put what the policy needs for acting, besides its weights, into the model."""

    def learn(self, batch: Batch, env_steps: int) -> Metrics:
        """Make the updates that a batch brings; the run has learned from `env_steps` env steps before it."""

    def learn_on_credit(self, env_steps: int) -> Metrics | None:
        """Make updates while there is no batch; None when none may be made."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides the `TrainState`."""

    def load_state_dict(self, state: dict[str, Any], env_steps: int) -> list[str]:
        """Restore it, of a run that has learned from `env_steps`; returns what the user should know."""

    def close(self) -> None:
        """Stop its threads."""


class FreshTraining:
    """Learns from each batch when it comes (ppo, appo).

    Args:
        config: the resolved configuration.
        state: model and optimiser.
    """

    checkpoint_bytes = 0
    held_bytes = 0

    def __init__(self, config: Config, state: TrainState):
        self.total_env_steps = config.run.total_env_steps
        self.state = state
        self.batch_device = state.device
        self.update = load_algorithm(config.algo.name)(config.algo.chosen, config.learner)
        appo = config.algo.appo
        if config.algo.name == "appo" and appo.replay_share:
            self.update.replay = FragmentReplay(
                appo.replay_columns, appo.replay_share, appo.replay_alpha, config.run.seed
            )

    def attach(
        self, arena: Arena, counters: CounterRow, run_folder: Path, continued_lanes: Set[int]
    ) -> list[str]:
        """Do nothing."""
        return []

    def before_publication(self, env_steps: int) -> None:
        """Do nothing."""

    def learn(self, batch: Batch, env_steps: int) -> Metrics:
        """Update on the batch."""
        progress = progress_at(env_steps, self.total_env_steps)
        metrics: Metrics = self.update(self.state, batch.tensors, progress, batch.lanes, batch.num_env_steps)
        return metrics

    def learn_on_credit(self, env_steps: int) -> Metrics | None:
        """Make none: there is nothing to learn from twice."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return nothing of its own."""
        return {"algorithm": {}, "replay": {}, "ratio": {}}

    def load_state_dict(self, state: dict[str, Any], env_steps: int) -> list[str]:
        """Take nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""


def make_training(
    config: Config, spec: EnvSpec, num_lanes: int, device: torch.device
) -> tuple[TrainState, Training]:
    """Build the model with its optimiser, and how the chosen algorithm learns.

    Args:
        config: the resolved configuration.
        spec: what the env is.
        num_lanes: env groups in the whole run.
        device: of the model.
    """
    model = build_model(spec, config.model_settings(), config.env.normalize_obs, seed=config.run.seed)
    if config.learner.compile:
        compile_model(model)
    state = TrainState(model.to(device), config, num_envs=num_lanes * config.actors.envs_per_group)
    if state.rows.num_threads > 1:
        torch.set_num_threads(1)  # minibatches are shared out instead
    if config.algo.chosen.source == "replay":
        return state, ReplayTraining(config, state, spec, num_lanes)
    return state, FreshTraining(config, state)


def check_finite(state: TrainState, config: Config, counters: CounterRow, last: Path | None) -> None:
    """Count updates that were skipped for not being finite, and end the run when too many were in a row.

    Args:
        state: that the updates were made on.
        config: the resolved configuration.
        counters: the learner's row.
        last: the last checkpoint, for the message.

    Raises:
        TrainingError: `learner.max_bad_updates` or more in a row.
    """
    bad = state.bad_updates_in_a_row
    if bad:
        counters.set("bad_updates", state.bad_updates)
        log.warning("skipped a non-finite update: update=%d in_a_row=%d", state.updates, bad)
    if bad >= config.learner.max_bad_updates:
        raise TrainingError(
            f"non-finite loss at update {state.updates}: {bad} updates in a row were skipped, counted "
            f"batch by batch; learner.max_bad_updates = {config.learner.max_bad_updates} is the limit.\n"
            f"Lower algo.{config.algo.name}.learning_rate, or look at the env's observations and rewards and "
            f"at what your own network returns. Last checkpoint: {last or 'none'}."
        )
