"""Learning from the replay: fragments go in, updates are made as the replay ratio pays for them.

Owns: the replay with its sampler, the ratio's counts, the algorithm with its critics and target networks.
Written by, read by: the learner's process alone.
Blocks on: the sampler thread, while a batch is drawn. Unblocked by: that thread.
If the peer dies: the sampler ends with this process; a learner that is restarted has an empty replay, unless
`replay.save` put it into the checkpoint, and fills it before it makes updates again.

In `sync` and `overlap` all updates that a version pays for are made before the next version, so that a run is the same
whatever the speed of its processes. In `async` it may also go on while no fragment comes, `replay.ahead_env_steps` far.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrain.algos import load_algorithm
from rltrain.algos.schedules import linear, progress_at
from rltrain.algos.train_state import TrainState
from rltrain.config.schema import Config
from rltrain.errors import CheckpointError, ConfigError
from rltrain.fields import EnvSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from rltrain.shm.arena import Arena
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard, CounterRow
from rltrain.workers.prefetch import Batch
from rltrain.workers.replay_ratio import ReplayRatio
from rltrain.workers.sampler import Sampler

FILE = "replay.bin"
CREDIT_UPDATES = 32
"""Updates made on credit before the weights are published and the ring is looked at again."""


class ReplayTraining:
    """Learns from transitions that are drawn again and again (dqn, sac, td3).

    Args:
        config: the resolved configuration.
        state: the policy that is published, and its optimiser.
        spec: what the env is.
        num_lanes: env groups in the whole run.
    """

    batch_device = torch.device("cpu")
    """Fragments only pass through host memory on their way into the replay."""

    def __init__(self, config: Config, state: TrainState, spec: EnvSpec, num_lanes: int):
        self.config, self.state, self.replay = config, state, config.replay
        self.layout = ReplayLayout.of(config, spec, num_lanes)
        self.update = load_algorithm(config.algo.name)(config.algo.chosen, config.learner, state)
        replay = self.replay
        ratio = replay.updates_per_env_step
        assert ratio != "auto", "the configuration is resolved"
        self.ratio = ReplayRatio(ratio, replay.learning_starts, replay.ahead_env_steps)
        self.priorities = self._new_priorities()
        self._last: dict[int, tuple[int, int]] = {}
        """Lane -> life and number of its last fragment in the replay."""
        self._saved: dict[str, Any] = {}
        self._end_by_s = math.inf
        networks = sum(x.numel() * x.element_size() for x in self.update.state_dict().values())
        self.checkpoint_bytes: int = networks + (self.layout.num_bytes if replay.save else 0)

    def attach(
        self, arena: Arena, counters: CounterRow, run_folder: Path, continued_lanes: Set[int]
    ) -> list[str]:
        """Reserve the memory and start the sampler.

        Args:
            arena: of the run; the actors have not started in it.
            counters: the learner's row.
            run_folder: for the file, where there is one.
            continued_lanes: lanes whose envs go on where the checkpoint left them; the others are reset.

        Returns:
            What the user should know of the replay that was saved.
        """
        self.control, self.counters = Control(arena), counters
        self.store = ReplayStore(self.layout, run_folder / FILE if self.replay.in_file else None)
        warnings = [self._refill()] if self._saved else []
        self._saved = {}
        first_lives = _first_lives(arena)
        self._last = {
            lane: (first_lives[lane // self.config.actors.groups_per_actor], index)
            for lane, (_, index) in self._last.items() if lane in continued_lanes
        }  # fmt: skip
        self.sampler = Sampler(
            self.store, self.priorities, self.replay.batch_size, self.state.device, counters, self.replay.prefetch
        )
        return warnings

    def _refill(self) -> str:
        """Take the saved replay, or begin with an empty one where sizes have changed; returns what the user hears."""
        problem = self._take_saved()
        if problem is not None:
            file = self.store.file
            del self.store  # first, as a file on a small disk has room once only
            self.store = ReplayStore(self.layout, file)
            self.priorities = self._new_priorities()
            self.ratio.load_state_dict(self.ratio.state_dict(), is_replay_empty=True)
            self._last = {}
            return f"the replay begins empty, as the saved one does not fit: {problem}"
        return f"the replay goes on with the {self.store.size:,} transitions of the checkpoint."

    def _take_saved(self) -> str | None:
        """Fill the replay with the saved one; returns why not."""
        try:
            if not np.array_equal(self._saved["env"], _digest_of_env(self.config)):
                return "its transitions are of other options of the section env."
            self.store.load_state_dict(_part(self._saved, "store."))
            self.priorities.load_state_dict(_part(self._saved, "priorities."))
        except (CheckpointError, ValueError, KeyError, TypeError) as error:
            return str(error)
        return None

    def _new_priorities(self) -> Priorities:
        replay = self.replay
        return Priorities(
            self.layout.num_items, replay.priority_alpha if replay.prioritized else 0.0, replay.priority_eps,
            self.config.run.seed, replay.normalize_weights,
        )

    def before_publication(self, env_steps: int) -> None:
        """Set how the policy explores; one that has learned already does not act at random again after a resume."""
        progress = progress_at(env_steps, self.config.run.total_env_steps)
        self.update.set_exploration(progress, is_warm_up=self.ratio.is_filling and not self.state.updates)

    def learn(self, batch: Batch, env_steps: int) -> dict[str, torch.Tensor]:
        """Put a batch of fragments into the replay and make the updates that are due.

        Args:
            batch: of fragments, on the host.
            env_steps: learned from before this batch.

        Returns:
            Metrics of the last update; none while the replay is being filled.
        """
        self.counters.enter("sample")
        num_envs = self.layout.num_envs
        for position, meta in enumerate(batch.metas):
            columns = slice(position * num_envs, (position + 1) * num_envs)
            fragment = {name: x[:, columns].numpy() for name, x in batch.tensors.items()}
            is_continued = self._last.get(meta.lane) == (meta.life, meta.fragment_index - 1)
            self._last[meta.lane] = (meta.life, meta.fragment_index)
            self.sampler.insert(meta.lane, fragment, is_continued)
        self.sampler.flush()  # the batch's memory is used again
        if self.config.env.normalize_obs:
            self.state.finish_batch(
                {name: x.to(self.state.device) for name, x in batch.tensors.items()}, batch.num_env_steps
            )
        self.counters.set("replay_size", self.store.size)
        self.ratio.collected(batch.num_env_steps, is_drawable=self.store.size > 0)
        return self._update_often(self.ratio.num_due, env_steps)

    def learn_on_credit(self, env_steps: int) -> dict[str, torch.Tensor] | None:
        """Make updates although no env steps came; None when too many were made so already."""
        number = min(CREDIT_UPDATES, self.ratio.num_on_credit)
        return self._update_often(number, env_steps) if number else None

    def _update_often(self, number: int, env_steps: int) -> dict[str, torch.Tensor]:
        """Make updates; the next batch is drawn while one is learned from."""
        metrics: dict[str, torch.Tensor] = {}
        if not (number and self.store.size):
            return metrics
        progress = progress_at(env_steps, self.config.run.total_env_steps)
        beta = linear(self.replay.priority_beta, self.replay.priority_beta_end, progress)
        sampler, enter = self.sampler, self.counters.enter
        enter("sample")
        sampler.draw(beta)
        for i in range(number):
            enter("sample")
            batch = sampler.take()
            is_last = i + 1 == number or self._is_to_end()  # known before another batch is ordered
            if not is_last:
                sampler.draw(beta)
            enter("update")
            td_error, metrics = self.update(batch.tensors, progress)
            sampler.learned(batch, td_error if self.replay.prioritized else None)
            self.ratio.updated()
            if is_last:
                break
        enter("sample")
        sampler.flush()
        return metrics

    def _is_to_end(self) -> bool:
        """Whether the run was told to stop, or to finish and the updates of this version take too long for that.

        What is still owed then is made after a resume, behind the next fragments.
        """
        if self.control.stop or not self.control.finish:
            return self.control.stop
        now = time.monotonic()
        self._end_by_s = min(self._end_by_s, now + self.config.supervision.shutdown_grace_s / 4)
        return now > self._end_by_s

    def state_dict(self) -> dict[str, Any]:
        """Return the algorithm's tensors, the ratio's counts and, by option, the replay."""
        replay: dict[str, np.ndarray] = {}
        if self.replay.save:
            replay.update({f"store.{name}": x for name, x in self.store.state_dict().items()})
            replay.update({f"priorities.{name}": x for name, x in self.priorities.state_dict().items()})
            replay["env"] = _digest_of_env(self.config)
            replay["last"] = np.array([(lane, last[1]) for lane, last in sorted(self._last.items())], np.int64)
        return {
            "algorithm": self.update.state_dict(),
            "replay": {name: torch.from_numpy(_packed(x)) for name, x in replay.items()},
            "ratio": self.ratio.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], env_steps: int) -> list[str]:
        """Take up training where `state_dict` left it; a saved replay is taken by `attach`.

        Args:
            state: of the checkpoint.
            env_steps: learned from until then.

        Returns:
            What the user should know of the replay.

        Raises:
            CheckpointError: it is of another algorithm or another model.
            ConfigError: filling the replay again takes all env steps that are left.
        """
        self.update.load_state_dict(state["algorithm"])
        saved = {name: x.numpy() for name, x in state["replay"].items()}
        self._saved = saved
        is_empty = not saved
        if not is_empty:
            self._last = {int(lane): (0, int(index)) for lane, index in saved["last"]}
        self.ratio.load_state_dict(state["ratio"], is_empty)
        if not is_empty:
            return []
        total = self.config.run.total_env_steps
        if total - env_steps <= self.replay.learning_starts:
            raise ConfigError(
                f"run.total_env_steps = {total} leaves {max(0, total - env_steps)} env steps, and the replay begins "
                f"empty (the checkpoint has none): replay.learning_starts = {self.replay.learning_starts} of them fill "
                "it, and nothing would be learned. Accepted: more env steps, or fewer replay.learning_starts."
            )
        return [
            f"the replay begins empty (replay.save is off): the next {self.replay.learning_starts:,} env steps "
            "fill it before updates go on."
        ]

    @property
    def held_bytes(self) -> int:
        """Memory of a loaded replay that is free again once `attach` has taken it over."""
        return sum(x.nbytes for x in self._saved.values())

    def close(self) -> None:
        """Stop the sampler."""
        self.sampler.close()


def _digest_of_env(config: Config) -> np.ndarray:
    """A number for all that decides what a transition means; observations are scaled only when they are drawn."""
    options = config.env.model_dump(mode="json", exclude={"normalize_obs", "vectorization"})
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).digest()
    return np.frombuffer(digest[:8], np.int64).copy()


def _part(state: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def _packed(x: np.ndarray) -> np.ndarray:
    """The same without gaps: a file would hold what lies in them, too."""
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


def _first_lives(arena: Arena) -> list[int]:
    """Which life each actor is going to begin, by its index."""
    board = CounterBoard(arena)
    return [board.row(i).num_lives + 1 for i, role in enumerate(arena.layout.roles) if role == "actor"]
