"""The sampler: draws batches from the replay, gathers them, and copies them to the device, ahead of the learner.

Owns: the replay, its priorities, and two host batches (pinned where there is a GPU); with `replay.prefetch` a thread.
Written by: that thread alone, in the order in which the learner asked; without it, the learner, at the same places.
Read by: the learner, a batch at a time, from `take` until `learned`.
Blocks on: the learner's next order. Unblocked by: the learner.
If the peer dies: it is a thread of the learner's process and ends with it; the replay is then as in the checkpoint.

Orders are carried out first in, first out, so what is drawn does not depend on which of the two threads is faster:
the batch after next is drawn after the priorities of the last one were updated, never earlier or later.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from rltrain.shm.counters import CounterRow

NUM_BUFFERS = 2
"""One that the learner learns from, one that is filled meanwhile."""


@dataclass
class _HostBatch:
    arrays: dict[str, np.ndarray]
    tensors: dict[str, torch.Tensor]


@dataclass
class SampledBatch:
    """B transitions on the device."""

    tensors: dict[str, torch.Tensor]
    """What `ReplayStore.batch_fields` names, and `is_weight`, float32 [B]."""
    items: np.ndarray
    generations: np.ndarray
    host: _HostBatch
    copied: torch.cuda.Event | None = None


class Sampler:
    """Carries out the learner's orders on the replay.

    Args:
        store: the transitions.
        priorities: which of them are drawn how often.
        batch_size: B.
        device: where batches go.
        counters: the learner's row, for the time spent.
        prefetch: on a thread of its own; else at once, by the caller.
    """

    def __init__(self, store: ReplayStore, priorities: Priorities, batch_size: int, device: torch.device,
                 counters: CounterRow, prefetch: bool):
        self.store, self.priorities, self.batch_size = store, priorities, batch_size
        self.device, self.counters = device, counters
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._free: queue.SimpleQueue[_HostBatch] = queue.SimpleQueue()
        for _ in range(NUM_BUFFERS):
            self._free.put(self._host_batch())
        self._drawn: queue.SimpleQueue[SampledBatch] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if prefetch:
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()

    # -- orders of the learner -----------------------------------------------------------------------------------

    def insert(self, lane: int, fragment: dict[str, np.ndarray], is_continued: bool) -> None:
        """Put a fragment [T+1, N, ...] into the replay. It is read until the next `flush` returns."""
        self._order(lambda: self._insert(lane, fragment, is_continued))

    def draw(self, beta: float) -> None:
        """Draw one more batch; `take` returns it. At most two may be out or on their way."""
        self._order(lambda: self._draw(beta))

    def take(self) -> SampledBatch:
        """Return the batch that was ordered first, waiting until it is drawn."""
        while True:
            try:
                batch = self._drawn.get(timeout=0.2)
                break
            except queue.Empty:
                self.counters.beat()
                self._raise_error()
        if batch.copied is not None:
            torch.cuda.current_stream(self.device).wait_event(batch.copied)
        return batch

    def learned(self, batch: SampledBatch, td_error: torch.Tensor | None) -> None:
        """Give the batch back with the error of each transition, float32 [B], its new priority; None: none."""
        event = None
        if self.stream is not None and td_error is not None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
            td_error.record_stream(self.stream)
        self._order(lambda: self._update(batch, td_error, event))

    def flush(self) -> None:
        """Wait until all orders are carried out."""
        if self._thread is not None:
            done = threading.Event()
            self._order(done.set)
            while not done.wait(0.2):
                self.counters.beat()
                self._raise_error()
        self._raise_error()

    def close(self) -> None:
        """Stop the thread."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(timeout=5)

    def _order(self, order: Callable[[], None]) -> None:
        if self._thread is None:
            order()
        else:
            self._raise_error()
            self._orders.put(order)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(1)
        try:
            while (order := self._orders.get()) is not None:
                order()
        except BaseException as error:
            self._error = error

    def _insert(self, lane: int, fragment: dict[str, np.ndarray], is_continued: bool) -> None:
        entered, left = self.store.insert(lane, fragment, is_continued)
        self.priorities.leave(left)
        self.priorities.enter(entered)

    def _draw(self, beta: float) -> None:
        started = time.monotonic_ns()
        draw = self.priorities.sample(self.batch_size, beta)
        host = self._free.get_nowait()
        self.store.gather(draw.items, host.arrays)
        host.arrays["is_weight"][...] = draw.is_weight
        tensors, copied = self._to_device(host)
        self.counters.add("sample_ns", time.monotonic_ns() - started)
        self._drawn.put(SampledBatch(tensors, draw.items, draw.generations, host, copied))

    def _update(self, batch: SampledBatch, td_error: torch.Tensor | None, event: torch.cuda.Event | None) -> None:
        started = time.monotonic_ns()
        if td_error is not None:
            if self.stream is not None and event is not None:
                with torch.cuda.stream(self.stream):
                    self.stream.wait_event(event)
                    td_error = td_error.to("cpu")
            self.priorities.update(batch.items, batch.generations, td_error.numpy())
        if batch.copied is not None:
            batch.copied.synchronize()  # only then may the host's copy be written again
        self._free.put(batch.host)
        self.counters.add("sample_ns", time.monotonic_ns() - started)

    def _to_device(self, host: _HostBatch) -> tuple[dict[str, torch.Tensor], torch.cuda.Event | None]:
        if self.stream is None:
            return dict(host.tensors), None
        with torch.cuda.stream(self.stream):
            moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in host.tensors.items()}
            event = torch.cuda.Event()
            event.record(self.stream)
        current = torch.cuda.default_stream(self.device)
        for tensor in moved.values():
            tensor.record_stream(current)
        return moved, event

    def _host_batch(self) -> _HostBatch:
        arrays, tensors = {}, {}
        shapes = {field.name: (field.shape, field.dtype) for field in self.store.batch_fields()}
        for name, (shape, dtype) in {**shapes, "is_weight": ((), "float32")}.items():
            tensor = torch.from_numpy(np.zeros((self.batch_size, *shape), dtype))
            if self.stream is not None:
                tensor = tensor.pin_memory()
            arrays[name], tensors[name] = tensor.numpy(), tensor
        return _HostBatch(arrays, tensors)
