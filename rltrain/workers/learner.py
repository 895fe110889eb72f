"""The learner: pulls batches, updates the policy, publishes weights, asks for checkpoints, decides when training ends.

Owns: the master weights, the optimiser, the count of env steps learned from.
Written by: this process alone.
Read by: everyone, through the weight board (weights) and the counter board (progress).
Blocks on: the prefetch thread (a batch); at a checkpoint of a lockstep schedule, the actors' snapshots.
Unblocked by: actors; every wait also times out to look at the stop word.
If the peer dies: a dead actor delays the batch until it is restarted; once the run is to stop, a silent one is not
waited for (`peers.py`). If this process dies, every process begins again at the last checkpoint (`saver.py`).
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import torch

from rltrain.config.load import config_from_dict
from rltrain.fields import EnvSpec
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.ring import TrajectoryRing
from rltrain.shm.weights import WeightBoard
from rltrain.workers.channel import Channel
from rltrain.workers.checkpoints import CheckpointStore
from rltrain.workers.device import take_cores, take_device, use_reproducible_kernels
from rltrain.workers.episodes import EpisodeWindow, OpenEpisodes
from rltrain.workers.prefetch import Batch, Prefetcher
from rltrain.workers.saver import Saver
from rltrain.workers.training import check_finite, make_training
from rltrain.workers.training_clock import TrainingClock

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

    def __init__(self, channel: Channel, settings: dict[str, Any], spec: EnvSpec):
        self.channel, self.spec = channel, spec
        self.settings = settings
        self.config = config_from_dict(settings["config"])
        run, pipeline = self.config.run, self.config.pipeline
        torch.manual_seed(run.seed)
        self.device = take_device(settings["device"], "learner.device")
        self.state, self.training = make_training(self.config, spec, settings["num_lanes"], self.device)
        self.is_lockstep = pipeline.schedule != "async"
        if self.is_lockstep:
            use_reproducible_kernels()
        self.version = 0
        self.env_steps = 0
        self.episodes = EpisodeWindow(run.target_window)
        self.open_episodes = OpenEpisodes(settings["num_lanes"], self.config.actors.envs_per_group)
        self.saver = Saver(channel, self.config, spec, self.state, settings["num_lanes"])
        self.snapshot_from: int | None = None
        self.reason: str | None = None
        self.clock = TrainingClock(run.time_limit_s, self.config.supervision.boot_timeout_s)
        self.has_learned = False  # in this life of the process
        self.lives: dict[int, int] = {}
        """Lane -> the life of its actor that its last fragment came from."""
        log_distance = self.config.log.every_env_steps
        self.log_every = max(1, run.total_env_steps // 200) if log_distance == "auto" else log_distance
        self.next_log = 0

    # -- start ------------------------------------------------------------------------------------------------

    def resume(self, path: Path) -> None:
        """Take up training where the newest good checkpoint of a run left it; keeps nothing of it that is not needed.

        Raises:
            CheckpointError: there is none, or it belongs to another env or another model.
        """
        checkpoint, warnings, self.saver.last = CheckpointStore.load(path)
        for warning in warnings:
            self.channel.send({"warning": warning})
        self.saver.restore(checkpoint)
        for text in self.training.load_state_dict(checkpoint["training"], checkpoint["env_steps"]):
            self.channel.send({"warning": text})
        self.version = checkpoint["version"]
        self.env_steps = checkpoint["env_steps"]
        self.episodes.load_state_dict(checkpoint["episodes"])
        self.next_log = checkpoint["next_log"]
        self.reason = self._goal_reached()

    def attach(self, arena: Arena, run_folder: Path) -> None:
        """Map the arena, publish the first weights, start the prefetch thread."""
        settings = self.settings
        self.arena = arena
        self.ring, self.control, self.board = TrajectoryRing(arena), Control(arena), WeightBoard(arena)
        self.counters = CounterBoard(arena).row(settings["counter_row"])
        self.counters.start(os.getpid())
        self.saver.attach(
            arena, run_folder, self.counters, self.version, self.env_steps, self.training.checkpoint_bytes
        )
        pipeline = self.config.pipeline
        prefetch_settings = {
            "schedule": pipeline.schedule,
            "num_lanes": settings["num_lanes"],
            "min_fragments": self.config.learner.min_batch_fragments,
            "max_fragments": self.config.learner.max_batch_fragments,
            "max_policy_lag": None if self.config.algo.chosen.source == "replay" else pipeline.max_policy_lag,
            "owner": settings["counter_row"] + 1,
        }
        self.prefetch = Prefetcher(
            self.ring, arena.layout.schema, prefetch_settings, self.control, self.counters,
            self.training.batch_device, self.version,
        )
        for text in self.training.attach(arena, self.counters, run_folder, self.saver.continued_lanes):
            self.channel.send({"warning": text})
        schema = arena.layout.schema
        self.clock.attach()
        self.rows_per_batch = settings["num_lanes"] * schema.num_envs * schema.fragment_length
        self._show_progress()

    # -- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end.

        Returns:
            What the closing summary says: reason, env_steps, updates, version, returns, checkpoint, weights hash.
        """
        is_complete = self.reason is not None  # a resumed run that had reached its end
        while not (is_complete or self._at_version_end()):
            if self._learn_on_credit():
                continue
            batch = self._next_batch()
            if batch is None:
                self.reason = self.reason or self._goal_reached() or "stopped"
                if self.has_learned:  # else it is as it was loaded, or nothing yet
                    self._save(snapshots={})
                break
            self._learn(batch)
        self.prefetch.close()
        self.training.close()
        return {
            "reason": self.reason,
            "env_steps": self.env_steps,
            "learned_env_steps_per_s": self.clock.env_steps_per_s,
            "updates": self.state.updates,
            "policy_version": self.version,
            "episodes": self.episodes.num_episodes,
            "return_mean": self.episodes.return_mean,
            "episode_length_mean_steps": self.episodes.length_mean,
            "checkpoint": str(self.saver.last) if self.saver.last else None,
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
            if self.control.finish or self.clock.is_over:
                give_up_at = give_up_at or time.monotonic() + self.config.supervision.shutdown_grace_s / 2
                if time.monotonic() > give_up_at or self.saver.peers.are_silent:
                    return None

    def _learn(self, batch: Batch) -> None:
        """Update on one batch; afterwards a new version is complete, but not yet published."""
        counters = self.counters
        if batch.copied is not None:
            counters.enter("h2d")  # what of the copy the update before did not hide
            batch.copied.synchronize()
        counters.enter("update")
        metrics: dict[str, torch.Tensor] = {}
        for meta in batch.metas:
            if self.lives.setdefault(meta.lane, meta.life) != meta.life:  # its actor died: the envs were reset
                self.lives[meta.lane] = meta.life
                self.saver.forget_returns(meta.lane)
                self.open_episodes.forget(meta.lane)
        if batch.num_env_steps:  # else every row is a reset
            metrics = self.training.learn(batch, self.env_steps)
            check_finite(self.state, self.config, self.counters, self.saver.last)
        for meta in batch.metas:
            counters.observe("policy_lag_versions", max(0, self.version - meta.policy_version))
        counters.observe("batch_fragments", len(batch.metas))
        self.prefetch.done(batch)
        self.version += 1
        self.env_steps += batch.num_env_steps
        self.episodes.add(batch.episode_returns, batch.episode_lengths)
        self.open_episodes.add(batch.lanes, batch.has_ended, batch.open_steps)
        if not self.has_learned:
            self.has_learned = True
            self.channel.send({"first_update": True})
        self.clock.learned(self.env_steps)
        counters.add("batches")
        counters.add("fragments", len(batch.metas))
        self._show_progress()
        if self.env_steps >= self.next_log:
            self._report(metrics)

    def _learn_on_credit(self) -> bool:
        """Where the algorithm may go on although no batch is there: do, and complete a version. `async` only."""
        if self.is_lockstep or self.prefetch.has_ready or self.control.finish or self.control.stop:
            return False
        metrics = self.training.learn_on_credit(self.env_steps)
        if metrics is None:
            return False
        check_finite(self.state, self.config, self.counters, self.saver.last)
        self.version += 1
        self._show_progress()
        return True

    def _at_version_end(self) -> bool:
        """Publish, save, or end: the one moment where a version is complete and nothing of the next is learned.

        Fragment k is consumed at version k. In `sync` it starts when version k is published, in `overlap` when
        version k-1 is. An exact checkpoint of version k needs the envs' states at the start of fragments k, so the
        actors must be told before they start them: in `overlap` one version ahead.

        Returns:
            Whether training is over.
        """
        self.reason = self.reason or self._goal_reached() or ("stopped" if self.control.finish else None)
        wanted = self.reason is not None or self.saver.is_due(self.env_steps)
        schedule = self.config.pipeline.schedule
        if schedule == "sync" and wanted:
            self.control.snapshot_fragment = self.version
            self._publish()
            self._save(self.saver.wait_snapshots(self.version))
        elif wanted and (schedule == "async" or self.snapshot_from == self.version):
            self._save(self.saver.wait_snapshots(self.version) if schedule == "overlap" else {})
            if self.reason is None:
                self._publish()
        else:
            if schedule == "overlap" and (wanted or self._checkpoint_is_near()):
                self.snapshot_from = self.control.snapshot_fragment = self.version + 1
            self._publish()
            return False
        return self.reason is not None

    def _goal_reached(self) -> str | None:
        run = self.config.run
        if self.env_steps >= run.total_env_steps:
            return "finished"
        if run.target_return is not None and self.episodes.is_full and self.episodes.return_mean >= run.target_return:
            return "target"
        return "time" if self.clock.is_over else None

    def _checkpoint_is_near(self) -> bool:
        """Whether the next batch may bring the end or a checkpoint."""
        ahead = self.env_steps + self.rows_per_batch
        return ahead >= self.config.run.total_env_steps or self.saver.is_due(ahead)

    def _publish(self) -> None:
        self.counters.enter("publish")
        self.training.before_publication(self.env_steps)
        self.board.publish(self.version, self.state.flat.publish_view())
        self.counters.set("policy_version", self.version)

    def _show_progress(self) -> None:
        counters = self.counters
        counters.set("env_steps", self.env_steps)
        counters.set("updates", self.state.updates)
        counters.set("episodes", self.episodes.num_episodes)
        counters.set("return_mean", self.episodes.return_mean)
        counters.set("length_mean", self.episodes.length_mean)
        counters.set("longest_open", self.open_episodes.longest)

    def _report(self, metrics: dict[str, torch.Tensor]) -> None:
        """Send one point of every curve; the only copy of metrics from the device."""
        values = {f"loss/{name}": float(value) for name, value in metrics.items()}
        if self.episodes.returns:
            values["rollout/return_mean"] = self.episodes.return_mean
            values["rollout/episode_length_mean_steps"] = self.episodes.length_mean
        values["rollout/episodes"] = self.episodes.num_episodes
        self.channel.send({"metrics": values, "env_steps": self.env_steps, "updates": self.state.updates})
        self.next_log = (self.env_steps // self.log_every + 1) * self.log_every

    def _save(self, snapshots: dict[int, bytes]) -> None:
        self.snapshot_from = self.control.snapshot_fragment = None
        progress = {
            "version": self.version,
            "env_steps": self.env_steps,
            "episodes": self.episodes.state_dict(),
            "next_log": self.next_log,
            "training": self.training.state_dict(),
        }
        self.saver.save(progress, snapshots, self.episodes.return_mean, is_last=self.reason is not None)


def main(channel: Channel, settings: dict[str, Any], fds: list[int]) -> None:
    """Run the learner: build the model from the spec, attach to the arena, train."""
    take_cores(settings["num_threads"])
    message, _ = channel.recv(None)
    learner = Learner(channel, settings, EnvSpec.from_dict(message["spec"]))
    if settings["resume"] is not None:
        learner.resume(Path(settings["resume"]))
    channel.send({
        "weight_bytes": learner.state.flat.weight_bytes,
        "version": learner.version,
        "device": str(learner.device),
        "env_steps": learner.env_steps,
        "updates": learner.state.updates,
        "held_bytes": learner.training.held_bytes,
    })
    message, arena_fds = channel.recv(None)
    learner.attach(Arena.attach(arena_fds[0], ArenaLayout.from_dict(message["layout"])), Path(message["run_folder"]))
    channel.send({"ready": True})
    channel.send({"done": learner.run()})
