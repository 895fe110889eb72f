"""The learner's checkpoints: when one is due, what it holds, and what makes it exact.

Owns: the checkpoint folder, through `CheckpointStore`; the env states and the weights that a resumed run starts with.
Written by: the learner, its only caller. Read by: a learner that resumes, and evaluation.
Blocks on: the disk; in a lockstep schedule, the actors' snapshots. Unblocked by: the actors, or half of
`supervision.shutdown_grace_s` (at once when one of them is silent for as long already), after which the checkpoint is
written without the states that are missing.
If the peer dies: an actor's env state is missing, and its envs start afresh when the run is resumed.

A checkpoint of a lockstep schedule is exact: it is taken where a version ends and holds the env states at the start
of the next fragments, so that a resumed run equals one that was never stopped, where the envs can be captured.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrain.algos.train_state import TrainState
from rltrain.config.load import config_from_dict
from rltrain.config.schema import ActorsSection, Config
from rltrain.errors import CheckpointError
from rltrain.fields import EnvSpec
from rltrain.shm.arena import Arena
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterRow
from rltrain.shm.snapshots import SnapshotArea
from rltrain.shm.weights import WeightBoard
from rltrain.workers.channel import Channel
from rltrain.workers.checkpoints import CheckpointStore
from rltrain.workers.peers import Peers

log = logging.getLogger(__name__)
_LOOK_S = 0.02
_RETRY_S = 0.5
_WARN_AGAIN_S = 60.0
_TEXT_BYTES = 1 << 14
"""Room for what is no tensor: the configuration, the spec, names, the archive's own tables."""
_LEARNERS_OPTIONS = ("normalize_obs", "normalize_reward", "reward_clip")
"""Of the section `env`, what the learner does with rows; the envs don't know of it."""


class Saver:
    """Writes the checkpoints of one learner, and puts a resumed one's env states and weights into the arena.

    Args:
        channel: to the supervisor, which hears of each checkpoint.
        config: the resolved configuration.
        spec: what the env is.
        state: model and optimiser.
        num_lanes: env groups in the whole run.
    """

    def __init__(self, channel: Channel, config: Config, spec: EnvSpec, state: TrainState, num_lanes: int):
        self.channel, self.config, self.spec, self.state, self.num_lanes = channel, config, spec, state, num_lanes
        self.last: Path | None = None
        """The checkpoint written last."""
        self._next_at: float = config.checkpoint.every_env_steps or math.inf
        """Env steps at which the next checkpoint is due."""
        self._next_s = math.inf
        """Time at which it is due at the latest (monotonic, s)."""
        self._num_unsaved = 0
        """Saves in a row that failed."""
        self._warned_at = -math.inf
        self._previous_weights: np.ndarray | None = None
        self._snapshots: dict[int, bytes] = {}

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Load model and optimiser, and keep the rest for `attach`.

        The number of envs and their options may have changed: envs whose saved states do not fit start afresh.

        Raises:
            CheckpointError: it belongs to another env or another model.
        """
        spec = EnvSpec.from_dict(json.loads(checkpoint["spec"]))
        if not spec.has_same_spaces(self.spec):
            raise CheckpointError(
                f"the checkpoint was made with env {spec.env_id} ({spec.action.kind} actions, "
                f"{len(spec.obs)} observation fields), but env.id = {self.spec.env_id!r} has other spaces. "
                "Resume with the configuration in the run folder."
            )
        saved = config_from_dict(json.loads(checkpoint["config"]))
        _check_same_model(saved, self.config)
        self.state.load_state_dict(checkpoint["train_state"])
        if len(checkpoint["previous_weights"]):
            self._previous_weights = checkpoint["previous_weights"].numpy()
        snapshots = checkpoint["snapshots"]
        changed = _changed_env_options(saved, self.config)
        if snapshots and changed:
            self.channel.send({
                "warning": "the env states of the checkpoint don't fit the new sizes or options "
                f"({', '.join(changed)}): environments are reset."
            })
        self._snapshots = {} if changed else {int(k): v.numpy().tobytes() for k, v in snapshots.items()}
        for lane in set(range(self.num_lanes)) - self._snapshots.keys():
            self.forget_returns(lane)
        self._plan_next(checkpoint["env_steps"])

    @property
    def continued_lanes(self) -> Set[int]:
        """Lanes whose envs go on where the checkpoint left them."""
        return self._snapshots.keys()

    def attach(
        self, arena: Arena, run_folder: Path, counters: CounterRow, version: int, env_steps: int = 0,
        training_bytes: int = 0,
    ) -> None:
        """Open the checkpoint folder; put env states of `version` and the weights before it into the arena.

        Warns when there will be no room for the checkpoints of the rest of the run, from `env_steps` on; the algorithm
        adds `training_bytes` to each.
        """
        self.control, self.board, self.snapshots = Control(arena), WeightBoard(arena), SnapshotArea(arena)
        self.counters = counters
        self.peers = Peers(arena, self.config.supervision.shutdown_grace_s / 2)
        limits = self.config.checkpoint
        self.store = CheckpointStore(run_folder / "checkpoints", limits.keep, limits.keep_best)
        num_saves = max(0, self.config.run.total_env_steps - env_steps) / (limits.every_env_steps or math.inf)
        if self._every_s < math.inf:
            num_saves = math.inf  # nobody knows how long the run will take
        self._next_s = time.monotonic() + self._every_s
        if lacking := self.store.missing_room(self._checkpoint_bytes() + training_bytes, num_saves + 1):
            self._warn(lacking)
        for lane, payload in list(self._snapshots.items()):
            if not self.snapshots.write(lane, version, payload):
                self.forget_returns(lane)
                del self._snapshots[lane]
                self.channel.send({
                    "warning": f"the env states of lane {lane} in the checkpoint have {len(payload)} bytes, more than "
                    f"the {self.snapshots.room_bytes} bytes of room: its environments are reset."
                })
        if self.config.pipeline.schedule == "overlap" and version > 0:
            previous = self._previous_weights
            if previous is None:  # the checkpoint is of another schedule
                previous = self.state.flat.publish_view()
                self.channel.send({
                    "warning": "the checkpoint holds no weights before its own, with which pipeline.schedule = "
                    "'overlap' acts: the first fragments are collected with its own."
                })
            self.board.publish(version - 1, previous)

    @property
    def _every_s(self) -> float:
        every_s = self.config.checkpoint.every_s
        assert every_s != "auto", "the configuration is resolved"
        return every_s or math.inf

    def is_due(self, env_steps: int) -> bool:
        """Whether a checkpoint is due once the learner has come to these env steps."""
        return env_steps >= self._next_at or time.monotonic() >= self._next_s

    def wait_snapshots(self, version: int) -> dict[int, bytes]:
        """Collect every lane's env state at the start of the fragment that this version consumes next.

        A lane whose state could not be taken answers with an empty one.
        """
        if not self.spec.snapshot_bytes:
            return {}
        self.counters.enter("checkpoint")
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + self.config.supervision.shutdown_grace_s / 2
        while len(found) < self.num_lanes and time.monotonic() < deadline and not self.control.stop:
            for lane in range(self.num_lanes):
                snapshot = self.snapshots.read(lane)
                if lane not in found and snapshot is not None and snapshot[0] == version:
                    found[lane] = snapshot[1]
            if len(found) < self.num_lanes:
                if self.peers.are_silent:
                    break
                self.control.wait(_LOOK_S)
                self.counters.beat()
        return found

    def save(self, progress: dict[str, Any], snapshots: dict[int, bytes], score: float, is_last: bool) -> None:
        """Write a checkpoint and tell the supervisor.

        Args:
            progress: the learner's counts, `version` and `env_steps` among them; handed back as they are at resume.
            snapshots: env state of each lane, as far as known.
            score: mean return, NaN before the first episode has ended.
            is_last: the run ends with it: where it cannot be written it is tried again for half of
                `supervision.shutdown_grace_s`, and then it is an error and not only a warning.

        Raises:
            CheckpointError: the last one cannot be written: no room, no folder, a disk that is read-only.
            TrainingError: the weights are not finite.
        """
        self.counters.enter("checkpoint")
        self._plan_next(progress["env_steps"])
        owed = progress["training"]["ratio"].get("owed", 0.0)
        if owed >= 1 and self.config.pipeline.schedule != "async":
            self._warn(
                f"{int(owed):,} updates that this version still owes would take longer than the run may take to end: a "
                "resumed run makes them behind the next fragments, and so does not end with the weights of one that "
                "was never stopped. A longer supervision.shutdown_grace_s leaves time for them."
            )
        state = {
            **progress,
            "spec": json.dumps(self.spec.to_dict()),
            "config": json.dumps(self.config.model_dump(mode="json")),
            "model": {name: x.detach().cpu().clone() for name, x in self.state.model.state_dict().items()},
            "train_state": self.state.state_dict(),
            "previous_weights": self._read_previous(progress["version"]),
            "snapshots": {str(k): torch.frombuffer(bytearray(v), dtype=torch.uint8) for k, v in snapshots.items() if v},
        }
        path = self._write(state, progress["env_steps"], None if math.isnan(score) else score, is_last)
        self._next_s = time.monotonic() + self._every_s
        if path is not None:
            self.last, self._num_unsaved = path, 0
            self.channel.send({"checkpoint": str(path), "env_steps": progress["env_steps"]})

    def _write(self, state: dict[str, Any], env_steps: int, score: float | None, is_last: bool) -> Path | None:
        """Write a checkpoint; None where that is not possible now, which the last one waits for a little."""
        deadline = time.monotonic() + self.config.supervision.shutdown_grace_s / 2
        has_warned = False
        while True:
            try:
                return self.store.save(state, env_steps, score, self.counters.beat)
            except CheckpointError as error:
                if not has_warned:
                    has_warned = True
                    self._warn_unsaved(error)
                if not is_last:
                    return None
                if time.monotonic() > deadline:
                    raise
                self.control.wait(_RETRY_S)
                self.counters.beat()

    def forget_returns(self, lane: int) -> None:
        """Begin the discounted returns of a lane anew, as its envs do."""
        num_envs = self.config.actors.envs_per_group
        self.state.reward_scaler.restart(slice(lane * num_envs, (lane + 1) * num_envs))

    def _warn(self, text: str) -> None:
        log.warning("%s", text)
        self.channel.send({"warning": text})

    def _warn_unsaved(self, error: CheckpointError) -> None:
        """Warn again and again, but no flood: at the 1st, 2nd, 4th, 8th ... save in a row, and once a minute."""
        self._num_unsaved += 1
        now, is_power_of_two = time.monotonic(), self._num_unsaved & (self._num_unsaved - 1) == 0
        if is_power_of_two or now - self._warned_at >= _WARN_AGAIN_S:
            self._warned_at = now
            times = "" if self._num_unsaved == 1 else f" {self._num_unsaved} checkpoints in a row were not written."
            self._warn(f"{error}{times}")

    def _checkpoint_bytes(self) -> int:
        """About the size of a checkpoint without the algorithm's part, on the large side, found without making one."""
        state = self.state
        model = sum(x.numel() * x.element_size() for x in state.model.state_dict().values())
        num_weights = 2 if self.config.pipeline.schedule == "overlap" else 1
        moments = 2 * state.flat.flat.numel() * state.flat.flat.element_size()
        env_states = self.num_lanes * self.snapshots.room_bytes if self.spec.snapshot_bytes else 0
        return model + num_weights * state.flat.weight_bytes + moments + env_states + _TEXT_BYTES

    def _plan_next(self, env_steps: int) -> None:
        distance = self.config.checkpoint.every_env_steps
        if distance is not None:
            self._next_at = (env_steps // distance + 1) * distance

    def _read_previous(self, version: int) -> torch.Tensor:
        """The weights before these, with which `overlap` acts; empty where none are wanted or left."""
        if self.config.pipeline.schedule == "overlap" and version > 0:
            previous = torch.zeros(self.state.flat.weight_bytes, dtype=torch.uint8)
            if self.board.read(version - 1, previous.numpy()) is not None:
                return previous
        return torch.zeros(0, dtype=torch.uint8)


def _check_same_model(saved: Config, config: Config) -> None:
    """Refuse options with which the saved weights or their statistics would mean something else."""
    old, new = (
        {
            "model": c.model.model_dump(mode="json"),
            "env": {"normalize_obs": c.env.normalize_obs},
            "algo": {"name": c.algo.name} if {saved.algo.chosen.source, config.algo.chosen.source} != {"fresh"} else {},
            "algo.dqn": {"dueling": c.algo.dqn.dueling},
        }
        for c in (saved, config)
    )
    wrong = [
        f"{section}.{name} = {json.dumps(value)}, but the checkpoint was made with {json.dumps(old[section][name])}."
        for section, options in new.items()
        for name, value in options.items()
        if value != old[section][name]
    ]
    if wrong:
        raise CheckpointError(
            "\n".join(wrong) + "\nThe saved weights fit that only. Leave it as it is in the run folder's config.toml, "
            "or start a new run without --resume."
        )


def _changed_env_options(saved: Config, config: Config) -> list[str]:
    """Return the options that differ and decide what the saved states of the envs belong to."""
    before, after = saved.env.model_dump(mode="json"), config.env.model_dump(mode="json")
    changed = [f"env.{name}" for name in after if name not in _LEARNERS_OPTIONS and before[name] != after[name]]
    old, new = saved.actors, config.actors
    if old.envs_per_group != new.envs_per_group:
        changed.append("actors.envs_per_group")
    if _lanes(old) != _lanes(new):
        names = ("num_actors", "groups_per_actor")
        changed += [f"actors.{name}" for name in names if getattr(old, name) != getattr(new, name)]
    return changed


def _lanes(actors: ActorsSection) -> int:
    assert actors.num_actors != "auto", "the configuration is resolved"
    return actors.num_actors * actors.groups_per_actor
