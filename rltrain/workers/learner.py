"""The learner: pulls batches, updates the policy, publishes weights, saves checkpoints, decides when training ends.

Owns: the master weights, the optimiser, the count of env steps learned from, the checkpoint folder.
Written by: this process alone.
Read by: everyone, through the weight board (weights) and the counter board (progress).
Blocks on: the prefetch thread (a batch); at a checkpoint of a lockstep schedule, the actors' snapshots.
Unblocked by: actors; every wait also times out to look at the stop word.
If the peer dies: a dead actor delays the batch until it is restarted. If this process dies, the run ends and can be
resumed from its last checkpoint.

A checkpoint of a lockstep schedule is exact: it is taken where a version ends and holds the env states at the start
of the next fragments, so that a resumed run equals one that was never stopped, where the envs can be captured.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import numpy as np
import torch

from rltrain.algos import load_algorithm
from rltrain.algos.schedules import progress_at
from rltrain.algos.train_state import TrainState
from rltrain.config.load import config_from_dict
from rltrain.errors import CheckpointError, TrainingError
from rltrain.fields import EnvSpec
from rltrain.models import build_model
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.snapshots import SnapshotArea
from rltrain.shm.weights import WeightBoard
from rltrain.workers.checkpoints import CheckpointStore, DiskFullError
from rltrain.workers.device import resolve_device
from rltrain.workers.episodes import EpisodeWindow
from rltrain.workers.prefetch import Batch, Prefetcher

log = logging.getLogger(__name__)
WAIT_S = 0.2


class Learner:
    """Trains until the run's end.

    Args:
        channel: to the supervisor.
        settings: `config` (the resolved configuration as a dict), `counter_row`, `resume` (a checkpoint's path or
            None), `num_threads`.
        spec: what the env is.
    """

    def __init__(self, channel, settings: dict, spec: EnvSpec):
        self.channel, self.spec = channel, spec
        self.settings = settings
        self.config = config_from_dict(settings["config"])
        run, pipeline = self.config.run, self.config.pipeline
        torch.manual_seed(run.seed)
        self.device = resolve_device(settings["device"])
        model = build_model(spec, self.config.model.model_dump(), self.config.env.normalize_obs, seed=run.seed)
        if self.config.learner.compile:
            model.compile()
        self.state = TrainState(
            model.to(self.device), self.config, num_envs=settings["num_lanes"] * self.config.actors.envs_per_group
        )
        self.update = load_algorithm(self.config.algo.name)(self.config.algo.chosen, self.config.learner)
        self.is_lockstep = pipeline.schedule != "async"
        self.version = 0
        self.env_steps = 0
        self.episodes = EpisodeWindow(run.target_window)
        self.previous_weights: np.ndarray | None = None
        self.restored_snapshots: dict[int, bytes] = {}
        self.snapshot_from: int | None = None
        self.reason: str | None = None
        self.last_checkpoint: Path | None = None
        self.next_checkpoint = self.config.checkpoint.every_env_steps or float("inf")
        log_distance = self.config.log.every_env_steps
        self.log_every = max(1, run.total_env_steps // 200) if log_distance == "auto" else log_distance
        self.next_log = 0

    # -- start ------------------------------------------------------------------------------------------------

    def restore(self, checkpoint: dict) -> None:
        """Take up training where a checkpoint left it.

        Raises:
            CheckpointError: it belongs to another env or another model.
        """
        saved = EnvSpec.from_dict(json.loads(checkpoint["spec"]))
        if not saved.has_same_spaces(self.spec):
            raise CheckpointError(
                f"the checkpoint was made with env {saved.env_id} ({saved.action.kind} actions, "
                f"{len(saved.obs)} observation fields), but env.id = {self.spec.env_id!r} has other spaces. "
                "Resume with the configuration in the run folder."
            )
        self.state.load_state_dict(checkpoint["train_state"])
        self.version = checkpoint["version"]
        self.env_steps = checkpoint["env_steps"]
        self.episodes.load_state_dict(checkpoint["episodes"])
        if len(checkpoint["previous_weights"]):
            self.previous_weights = checkpoint["previous_weights"].numpy()
        self.next_log = checkpoint["next_log"]
        distance = self.config.checkpoint.every_env_steps
        if distance is not None:
            self.next_checkpoint = (self.env_steps // distance + 1) * distance
        self.restored_snapshots = {int(k): v.numpy().tobytes() for k, v in checkpoint["snapshots"].items()}

    def attach(self, arena: Arena, run_folder: Path) -> None:
        """Map the arena, publish the first weights, start the prefetch thread."""
        settings = self.settings
        self.arena = arena
        self.ring, self.control, self.board = TrajectoryRing(arena), Control(arena), WeightBoard(arena)
        self.snapshots = SnapshotArea(arena)
        self.counters = CounterBoard(arena).row(settings["counter_row"])
        self.counters.start(os.getpid())
        self.store = CheckpointStore(
            run_folder / "checkpoints", self.config.checkpoint.keep, self.config.checkpoint.keep_best
        )
        for lane, payload in self.restored_snapshots.items():
            self.snapshots.write(lane, self.version, payload)
        if self.previous_weights is not None:
            self.board.publish(self.version - 1, self.previous_weights)
        pipeline = self.config.pipeline
        prefetch_settings = {
            "schedule": pipeline.schedule,
            "num_lanes": settings["num_lanes"],
            "min_fragments": self.config.learner.min_batch_fragments,
            "max_fragments": self.config.learner.max_batch_fragments,
            "max_policy_lag": pipeline.max_policy_lag,
            "owner": settings["counter_row"] + 1,
        }
        self.prefetch = Prefetcher(
            self.ring, arena.layout.schema, prefetch_settings, self.control, self.counters, self.device, self.version
        )
        schema = arena.layout.schema
        self.rows_per_batch = settings["num_lanes"] * schema.num_envs * schema.fragment_length
        self._show_progress()

    # -- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> dict:
        """Train to the end.

        Returns:
            What the closing summary says: reason, env_steps, updates, version, returns, checkpoint, weights hash.
        """
        while not self._at_version_end():
            batch = self._next_batch()
            if batch is None:
                self.reason = self.reason or "stopped"
                self._save(snapshots={})
                break
            self._learn(batch)
        self.prefetch.close()
        return {
            "reason": self.reason,
            "env_steps": self.env_steps,
            "updates": self.state.updates,
            "policy_version": self.version,
            "episodes": self.episodes.num_episodes,
            "return_mean": self.episodes.return_mean,
            "episode_length_mean_steps": self.episodes.length_mean,
            "checkpoint": str(self.last_checkpoint) if self.last_checkpoint else None,
            "weights_sha256": self.state.flat.hash(),
        }

    def _next_batch(self) -> Batch | None:
        """Wait for a batch; None when the run is told to stop and no further one comes in time."""
        self.counters.enter("wait_data")
        give_up_at: float | None = None
        while True:
            batch = self.prefetch.next(WAIT_S)
            if batch is not None:
                return batch
            self.counters.beat()
            if self.control.stop:
                return None
            if self.control.finish:
                give_up_at = give_up_at or time.monotonic() + self.config.supervision.shutdown_grace_s / 2
                if time.monotonic() > give_up_at:
                    return None

    def _learn(self, batch: Batch) -> None:
        """Update on one batch; afterwards a new version is complete, but not yet published."""
        counters = self.counters
        counters.enter("update")
        metrics = self.update(
            self.state, batch.tensors, progress_at(self.env_steps, self.config.run.total_env_steps), batch.lanes
        )
        self._check_finite()
        for meta in batch.metas:
            counters.observe("policy_lag_versions", max(0, self.version - meta.policy_version))
        counters.observe("batch_fragments", len(batch.metas))
        self.prefetch.done(batch)
        self.version += 1
        self.env_steps += batch.num_env_steps
        self.episodes.add(batch.episode_returns, batch.episode_lengths)
        if self.version == 1:
            self.channel.send({"first_update": True})
        counters.add("batches")
        counters.add("fragments", len(batch.metas))
        self._show_progress()
        if self.env_steps >= self.next_log:
            self._report(metrics)

    def _check_finite(self) -> None:
        bad = self.state.bad_updates_in_a_row
        if bad:
            self.counters.add("bad_updates")
            log.warning("skipped a non-finite update: update=%d in_a_row=%d", self.state.updates, bad)
        if bad >= self.config.learner.max_bad_updates:
            raise TrainingError(
                f"non-finite loss at update {self.state.updates}: {bad} updates in a row were skipped "
                f"(learner.max_bad_updates = {self.config.learner.max_bad_updates}).\n"
                f"Lower algo.{self.config.algo.name}.learning_rate, or look at the env's observations and rewards. "
                f"Last checkpoint: {self.last_checkpoint or 'none'}."
            )

    def _at_version_end(self) -> bool:
        """Publish, save, or end: the one moment where a version is complete and nothing of the next is learned.

        Fragment k is consumed at version k. In `sync` it starts when version k is published, in `overlap` when
        version k-1 is. An exact checkpoint of version k needs the envs' states at the start of fragments k, so the
        actors must be told before they start them: in `overlap` one version ahead.

        Returns:
            Whether training is over.
        """
        self.reason = self.reason or self._end_reason()
        wanted = self.reason is not None or self.env_steps >= self.next_checkpoint
        schedule = self.config.pipeline.schedule
        if schedule == "sync" and wanted:
            self.control.snapshot_fragment = self.version
            self._publish()
            self._save(self._wait_snapshots())
        elif wanted and (schedule == "async" or self.snapshot_from == self.version):
            self._save(self._wait_snapshots() if schedule == "overlap" else {})
            if self.reason is None:
                self._publish()
        else:
            if schedule == "overlap" and (wanted or self._checkpoint_is_near()):
                self.snapshot_from = self.control.snapshot_fragment = self.version + 1
            self._publish()
            return False
        return self.reason is not None

    def _end_reason(self) -> str | None:
        run = self.config.run
        if self.env_steps >= run.total_env_steps:
            return "finished"
        if run.target_return is not None and self.episodes.is_full and self.episodes.return_mean >= run.target_return:
            return "target"
        return "stopped" if self.control.finish else None

    def _checkpoint_is_near(self) -> bool:
        """Whether the next batch may bring the end or a checkpoint."""
        return self.env_steps + self.rows_per_batch >= min(self.config.run.total_env_steps, self.next_checkpoint)

    def _publish(self) -> None:
        self.counters.enter("publish")
        self.board.publish(self.version, self.state.flat.publish_view())
        self.counters.set("policy_version", self.version)

    def _show_progress(self) -> None:
        counters = self.counters
        counters.set("env_steps", self.env_steps)
        counters.set("updates", self.state.updates)
        counters.set("episodes", self.episodes.num_episodes)
        counters.set("return_mean", self.episodes.return_mean)
        counters.set("length_mean", self.episodes.length_mean)

    def _report(self, metrics: dict[str, torch.Tensor]) -> None:
        """Send one point of every curve; the only copy of metrics from the device."""
        values = {f"loss/{name}": float(value) for name, value in metrics.items()}
        if self.episodes.returns:
            values["rollout/return_mean"] = self.episodes.return_mean
            values["rollout/episode_length_mean_steps"] = self.episodes.length_mean
        values["rollout/episodes"] = self.episodes.num_episodes
        self.channel.send({"metrics": values, "env_steps": self.env_steps, "updates": self.state.updates})
        self.next_log = (self.env_steps // self.log_every + 1) * self.log_every

    # -- checkpoints ------------------------------------------------------------------------------------------

    def _wait_snapshots(self) -> dict[int, bytes]:
        """Collect every lane's env state at the start of the fragment that this version consumes next."""
        if not self.spec.snapshot_bytes:
            return {}
        self.counters.enter("checkpoint")
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + self.config.supervision.shutdown_grace_s / 2
        while len(found) < self.settings["num_lanes"] and time.monotonic() < deadline and not self.control.stop:
            for lane in range(self.settings["num_lanes"]):
                snapshot = self.snapshots.read(lane)
                if lane not in found and snapshot is not None and snapshot[0] == self.version:
                    found[lane] = snapshot[1]
            if len(found) < self.settings["num_lanes"]:
                self.control.wait(WAIT_S / 10)
                self.counters.beat()
        return found

    def _save(self, snapshots: dict[int, bytes]) -> None:
        self.counters.enter("checkpoint")
        self.snapshot_from = self.control.snapshot_fragment = None
        distance = self.config.checkpoint.every_env_steps
        if distance is not None:
            self.next_checkpoint = (self.env_steps // distance + 1) * distance
        previous = torch.zeros(0, dtype=torch.uint8)
        if self.config.pipeline.schedule == "overlap" and self.version > 0:
            previous = torch.zeros(self.state.flat.weight_bytes, dtype=torch.uint8)
            if self.board.read(self.version - 1, previous.numpy()) is None:
                previous = previous[:0]
        score = self.episodes.return_mean
        state = {
            "spec": json.dumps(self.spec.to_dict()),
            "config": json.dumps(self.settings["config"]),
            "model": {name: x.detach().cpu().clone() for name, x in self.state.model.state_dict().items()},
            "train_state": self.state.state_dict(),
            "version": self.version,
            "env_steps": self.env_steps,
            "episodes": self.episodes.state_dict(),
            "previous_weights": previous,
            "next_log": self.next_log,
            "snapshots": {str(k): torch.frombuffer(bytearray(v), dtype=torch.uint8) for k, v in snapshots.items()},
        }
        try:
            self.last_checkpoint = self.store.save(state, self.env_steps, None if score != score else score)
        except DiskFullError as error:
            log.warning("%s", error)
            self.channel.send({"warning": str(error)})
            if self.reason is not None:
                raise
            return
        self.channel.send({"checkpoint": str(self.last_checkpoint), "env_steps": self.env_steps})


def main(channel, settings: dict, fds: list[int]) -> None:
    """Run the learner: build the model from the spec, attach to the arena, train."""
    torch.set_num_threads(settings["num_threads"])
    message, _ = channel.recv(None)
    spec = EnvSpec.from_dict(message["spec"])
    learner = Learner(channel, settings, spec)
    if settings["resume"] is not None:
        checkpoint, warnings = CheckpointStore.load(Path(settings["resume"]))
        for warning in warnings:
            channel.send({"warning": warning})
        learner.restore(checkpoint)
    channel.send({
        "weight_bytes": learner.state.flat.weight_bytes,
        "version": learner.version,
        "env_steps": learner.env_steps,
        "updates": learner.state.updates,
    })
    message, arena_fds = channel.recv(None)
    learner.attach(Arena.attach(arena_fds[0], ArenaLayout.from_dict(message["layout"])), Path(message["run_folder"]))
    channel.send({"ready": True})
    channel.send({"done": learner.run()})
