"""The prefetch thread: takes READY fragments, gathers them into a host batch, and copies it to the device.

Owns: two host batches (pinned where there is a GPU) and the slots it has taken, until it releases them.
Written by: this thread alone; a batch belongs to the learner from `next` until `done`.
Read by: the learner.
Blocks on: the ring (READY fragments), a free host batch.
Unblocked by: actors' publications, the learner's `done`.
If the peer dies: slots that this thread held go back to READY when the supervisor reclaims them.

The update runs meanwhile: gathers and waits release the GIL, the copy runs on a stream of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from rltrain.fields import FragmentSchema
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterRow
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from rltrain.workers.episodes import open_steps

WAIT_S = 0.2
LOOK_S = 0.002
"""How often a batch that could be closed looks whether the learner has become free, in `async`."""


@dataclass
class Batch:
    """Fragments side by side, `[T+1, B, ...]` with B = fragments x N."""

    number: int
    """Batches since the start of training; also the learner's policy version when it is consumed."""
    tensors: dict[str, torch.Tensor]
    lanes: np.ndarray
    """int64 [fragments], the lane of each block of N columns."""
    metas: list[FragmentMeta]
    num_env_steps: int
    """Valid rows: env steps to learn from."""
    episode_returns: np.ndarray
    """float64, of the episodes that ended in this batch, in the order (step, column)."""
    episode_lengths: np.ndarray
    has_ended: np.ndarray
    """bool [B], whether an episode of the column ended."""
    open_steps: np.ndarray
    """int64 [B], env steps after the last end, or all of the column's."""
    host: HostBatch
    copied: torch.cuda.Event | None = None


@dataclass
class HostBatch:
    """One of the two reusable host buffers."""

    arrays: dict[str, np.ndarray]
    tensors: dict[str, torch.Tensor]
    metas: list[FragmentMeta] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)


class Prefetcher:
    """Assembles batches ahead of the learner.

    Lockstep schedules: batch k holds fragment k of every lane, in lane order. `async`: whatever is ready, between
    `min_fragments` and `max_fragments`; fragments that would be too old when consumed are dropped and counted.

    Args:
        ring: the trajectory ring.
        schema: its fragment schema.
        settings: `schedule`, `num_lanes`, `min_fragments`, `max_fragments`, `max_policy_lag` (None: any), `owner`.
        control: for the stop word.
        counters: the learner's row; only drop counters and the copy time are touched from this thread.
        device: where batches go.
        first_batch: number of the first batch.
    """

    def __init__(self, ring: TrajectoryRing, schema: FragmentSchema, settings: dict, control: Control,
                 counters: CounterRow, device: torch.device, first_batch: int):
        self.ring, self.schema, self.settings, self.control = ring, schema, settings, control
        self.counters, self.device, self.owner = counters, device, settings["owner"]
        self.is_lockstep = settings["schedule"] != "async"
        self.num_fragments = settings["num_lanes"] if self.is_lockstep else settings["max_fragments"]
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self.free: queue.SimpleQueue[HostBatch] = queue.SimpleQueue()
        for _ in range(2):
            self.free.put(self._host_batch())
        self.next_number = first_batch
        self.filling: dict[int, HostBatch] = {}
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None when there is none within the time. Called by the learner only."""
        try:
            batch = self.ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(batch, BaseException):
            raise batch
        if batch.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(batch.copied)
        return batch

    @property
    def has_ready(self) -> bool:
        """Whether `next` would return at once."""
        return not self.ready.empty()

    def done(self, batch: Batch) -> None:
        """Give the batch's buffers back. On CUDA the host buffer is reused only after its copy has ended."""
        if batch.copied is not None:
            batch.copied.synchronize()
        self.free.put(batch.host)

    def close(self) -> None:
        """Stop the thread."""
        self.closed.set()
        self.thread.join(timeout=5)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            torch.set_num_threads(1)
            while not (self.closed.is_set() or self.control.stop):
                if self.is_lockstep:
                    self._collect_lockstep()
                else:
                    self._collect_ready()
        except _Closed:
            pass
        except BaseException as error:
            self.ready.put(error)

    def _collect_lockstep(self) -> None:
        slot = self.ring.take(self.owner, WAIT_S)
        if slot is None:
            return
        meta = self.ring.meta(slot)
        host = self.filling.get(meta.fragment_index)
        if meta.fragment_index < self.next_number or (host is not None and meta.lane in host.columns):
            self._drop(slot)  # an actor died between its publication and the note of it, and collected it again
            return
        if host is None:
            host = self.filling[meta.fragment_index] = self._wait_free()
        self._gather(slot, meta, host, meta.lane)
        while self._is_full(self.filling.get(self.next_number)):
            self._close(self.filling.pop(self.next_number))

    def _is_full(self, host: HostBatch | None) -> bool:
        return host is not None and len(host.metas) == self.num_fragments

    def _collect_ready(self) -> None:
        host = self._wait_free()
        minimum, maximum = self.settings["min_fragments"], self.settings["max_fragments"]
        while len(host.metas) < maximum:
            may_close = len(host.metas) >= minimum and self.ready.empty()
            slot = self.ring.take(self.owner, 0 if may_close else LOOK_S)
            if slot is not None:
                meta = self.ring.meta(slot)
                limit = self.settings["max_policy_lag"]
                if limit is not None and self.next_number - meta.policy_version > limit:
                    self._drop(slot)
                else:
                    self._gather(slot, meta, host, len(host.metas))
            elif may_close:
                break
            elif self.closed.is_set() or self.control.stop:
                return
        self._close(host)

    def _drop(self, slot: int) -> None:
        valid = self.ring.field("valid")[slot, : self.schema.fragment_length]
        self.counters.add("dropped_env_steps", int(np.count_nonzero(valid)))
        self.ring.release(slot, self.owner)

    def _gather(self, slot: int, meta: FragmentMeta, host: HostBatch, position: int) -> None:
        self.ring.gather_fragment(slot, position * self.schema.num_envs, host.arrays)
        self.ring.release(slot, self.owner)
        host.metas.append(meta)
        host.columns.append(position)

    def _close(self, host: HostBatch) -> None:
        """Make a batch of a filled buffer and hand it to the learner."""
        started = time.monotonic_ns()
        length, columns = self.schema.fragment_length, len(host.metas) * self.schema.num_envs
        order = np.argsort(host.columns)
        arrays = host.arrays
        ended = (arrays["terminated"][:length, :columns] | arrays["truncated"][:length, :columns]).view(bool)
        valid = arrays["valid"][:length, :columns].view(bool)
        has_ended, num_open = open_steps(ended, valid)
        tensors, copied = self._to_device(host, columns)
        batch = Batch(
            number=self.next_number,
            tensors=tensors,
            lanes=np.array([host.metas[i].lane for i in order], np.int64),
            metas=[host.metas[i] for i in order],
            num_env_steps=int(np.count_nonzero(valid)),
            episode_returns=arrays["episode_return"][:length, :columns][ended],
            episode_lengths=arrays["episode_length"][:length, :columns][ended],
            has_ended=has_ended,
            open_steps=num_open,
            host=host,
            copied=copied,
        )
        host.metas, host.columns = [], []
        self.next_number += 1
        self.counters.add("copy_ns", time.monotonic_ns() - started)
        self.ready.put(batch)

    def _to_device(
        self, host: HostBatch, columns: int
    ) -> tuple[dict[str, torch.Tensor], torch.cuda.Event | None]:
        names = [f.name for f in self.schema.fields if f.per_env and not f.name.startswith("episode_")]
        if self.stream is None:
            return {name: host.tensors[name][:, :columns] for name in names}, None
        with torch.cuda.stream(self.stream):
            # Whole, then cut: a copy of a part with gaps would go through pageable memory and wait.
            moved = {name: host.tensors[name].to(self.device, non_blocking=True) for name in names}
            event = torch.cuda.Event()
            event.record(self.stream)
        current = torch.cuda.default_stream(self.device)
        for tensor in moved.values():
            tensor.record_stream(current)
        return {name: tensor[:, :columns] for name, tensor in moved.items()}, event

    def _wait_free(self) -> HostBatch:
        while not (self.closed.is_set() or self.control.stop):
            try:
                return self.free.get(timeout=WAIT_S)
            except queue.Empty:
                continue
        raise _Closed

    def _host_batch(self) -> HostBatch:
        columns = self.num_fragments * self.schema.num_envs
        arrays, tensors = {}, {}
        for f in self.schema.fields:
            width = columns if f.per_env else self.num_fragments
            shape = (self.schema.fragment_length + 1, width, *f.shape)
            tensor = torch.from_numpy(np.zeros(shape, f.dtype))
            if self.stream is not None:
                tensor = tensor.pin_memory()
            tensors[f.name], arrays[f.name] = tensor, tensor.numpy()
        return HostBatch(arrays, tensors)


class _Closed(Exception):
    """The thread was asked to end while it waited."""
