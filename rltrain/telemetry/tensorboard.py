"""TensorBoard files, written by a thread of their own: neither the import (0.2 to 0.5 s) nor a slow disk is waited for.

Owns: the run folder's event files. Called by the supervisor alone.
Blocks on: nothing; `close` waits as long as it is told.
If the disk is full: one warning, training goes on, and the curves do once there is room, with the points that wait.

The axis is env steps learned from. On a resume, points beyond the checkpoint are declared void by a session-start
event, which TensorBoard obeys, and no tag gets a point at or before its last one: curves never fold back.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rltrain.shm.counters import BIN_EDGES
from rltrain.telemetry.metrics import metric_for

log = logging.getLogger(__name__)

MAX_QUEUED = 4096
"""Points that wait for a slow disk before further ones are dropped; a run queues about two each second."""
FLUSH_S = 5.0
RETRY_S = 10.0
"""Distance between two tries to write while the disk takes nothing."""
_file_number = itertools.count()


class TensorboardWriter:
    """Writes one event file; the thread and the file come with the first point.

    Args:
        folder: of the event files; made when missing.
        config_text: the resolved configuration as TOML, shown on the text page.
        hparams: option -> value; sections may be nested.
        purge_step: env steps of the checkpoint that the run goes on from, None for a fresh run.
        on_warning: called at most once, from the writing thread, when writing fails.
    """

    def __init__(
        self,
        folder: Path,
        config_text: str,
        hparams: dict[str, Any],
        purge_step: int | None = None,
        on_warning: Callable[[str], None] = log.warning,
    ):
        self._folder, self._on_warning, self._purge_step = Path(folder), on_warning, purge_step
        self._opening = (config_text, _flat(hparams))
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(MAX_QUEUED)
        self._last_step: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._has_warned = False
        self._has_failed = False
        self._has_seen_end = False
        self._closing = threading.Event()

    def scalars(self, values: dict[str, float], env_steps: int) -> None:
        """Add a point to each named curve."""
        new = {name: float(value) for name, value in values.items() if self._is_new(name, env_steps)}
        if new:
            self._put("scalars", new, env_steps)

    def histogram(self, name: str, counts: np.ndarray, env_steps: int) -> None:
        """Add a histogram.

        Args:
            name: of the metric.
            counts: int64 [NUM_BINS] over `counters.BIN_EDGES`; an empty one is left out.
            env_steps: place on the axis.
        """
        if counts.any() and self._is_new(name, env_steps):
            self._put("histogram", name, counts.copy(), env_steps)

    def text(self, name: str, text: str, env_steps: int) -> None:
        """Add a text, shown as Markdown."""
        if self._is_new(name, env_steps):
            self._put("text", name, text, env_steps)

    def hparams(self, final: dict[str, float], env_steps: int, succeeded: bool = True) -> None:
        """Add what the run came to, shown beside its hyperparameters; called once, at the end."""
        self.scalars(final, env_steps)
        self._put("session_end", succeeded, env_steps)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued and close the file; returns whether that was done in time."""
        self._closing.set()
        if self._thread is None:
            return True
        deadline = time.monotonic() + timeout_s
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    # -- the caller's side ------------------------------------------------------------------------------------

    def _is_new(self, name: str, env_steps: int) -> bool:
        floor = -1 if self._purge_step is None else self._purge_step
        if env_steps <= self._last_step.get(name, floor):
            return False
        self._last_step[name] = env_steps
        return True

    def _put(self, *item: Any) -> None:
        if self._has_failed or self._closing.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tensorboard", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((*item, time.time()))
        except queue.Full:
            self._warn(f"TensorBoard points are dropped: {self._folder} takes them too slowly.")

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._on_warning(message)

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Write to the end; after a failure in another file, once more when closing."""
        has_begun, is_last_try = False, False
        while not (is_last_try or self._has_seen_end):
            is_last_try = self._closing.is_set()
            try:
                with _EventFile(self._folder) as file:
                    if not has_begun:
                        file.begin(*self._opening, self._purge_step)
                        file.flush()
                        has_begun = True
                    return self._write_queued(file)
            except OSError as error:
                self._warn(
                    f"TensorBoard files cannot be written: {error} ({self._folder}). Training goes on, and they are "
                    f"tried again every {RETRY_S:g} s."
                )
                self._closing.wait(RETRY_S)
            except Exception as error:
                self._has_failed = True
                self._warn(f"TensorBoard files are no longer written: {error} ({self._folder}). Training goes on.")
                while self._queue.get() is not None:
                    pass
                return None
        return None

    def _write_queued(self, file: _EventFile) -> None:
        flush_at = 0.0
        while (item := self._next(flush_at)) is not None:
            if item:
                kind, *arguments = item
                getattr(file, kind)(*arguments)
            if time.monotonic() >= flush_at:
                file.flush()
                flush_at = time.monotonic() + FLUSH_S
        self._has_seen_end = True

    def _next(self, flush_at: float) -> tuple[Any, ...] | None:
        """The next item; empty when it is time to flush, None at the end."""
        try:
            return self._queue.get(timeout=max(0.01, flush_at - time.monotonic()) if flush_at else None)
        except queue.Empty:
            return ()


class _EventFile:
    """One event file; TensorBoard's own protocol buffers and record format. Used by the thread alone."""

    def __init__(self, folder: Path):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.plugins.scalar import metadata as scalar_metadata
        from tensorboard.plugins.text import metadata as text_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
        from tensorboard.util import tensor_util

        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._hparams, self._text_metadata, self._tensor_util = summary_v2, text_metadata, tensor_util
        self._scalar_metadata = scalar_metadata
        self._described: set[str] = set()
        folder.mkdir(exist_ok=True)  # not its parents: a run folder that was moved is not made anew
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_number)}"
        self._path = folder / name
        self._file = open(self._path, "wb")
        self._records = RecordWriter(self._file)
        self._add(time.time(), file_version="brain.Event:2")

    def __enter__(self) -> _EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; one that nothing could be written to goes again."""
        try:
            self._file.close()
        finally:
            with contextlib.suppress(OSError):
                if self._path.stat().st_size == 0:
                    self._path.unlink()

    def flush(self) -> None:
        self._file.flush()

    def begin(self, config_text: str, hparams: dict[str, Any], purge_step: int | None) -> None:
        first_step = 0
        if purge_step is not None:
            # Voids all points of earlier files at this step or beyond; the checkpoint's own point stays.
            first_step = purge_step + 1
            start = self._event_pb2.SessionLog(status=self._event_pb2.SessionLog.START)
            self._add(time.time(), first_step, session_log=start)
        now = time.time()
        self.text("run/config", "\n".join("    " + line for line in config_text.splitlines()), first_step, now)
        self._add(now, first_step, summary=self._hparams.hparams_pb(hparams, start_time_secs=now))

    def scalars(self, values: dict[str, float], env_steps: int, wall_time: float) -> None:
        summary = self._summary_pb2.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, simple_value=value, metadata=self._description(name))
        self._add(wall_time, env_steps, summary=summary)

    def histogram(self, name: str, counts: np.ndarray, env_steps: int, wall_time: float) -> None:
        upper = np.append(BIN_EDGES[1:], BIN_EDGES[-1] * 2**0.25)
        filled = np.flatnonzero(counts)
        part = slice(filled[0], filled[-1] + 1)
        lower, upper, counts = BIN_EDGES[part], upper[part], counts[part]
        histogram = self._summary_pb2.HistogramProto(
            min=lower[0], max=upper[-1], num=counts.sum(), sum=counts @ lower, sum_squares=counts @ lower**2,
            bucket_limit=upper.tolist(), bucket=counts.astype(np.float64).tolist(),
        )
        summary = self._summary_pb2.Summary()
        summary.value.add(tag=name, histo=histogram)
        self._add(wall_time, env_steps, summary=summary)

    def _description(self, name: str) -> Any:
        """What the table of metrics says of a curve, with its first point; None for later ones."""
        metric = metric_for(name)
        if name in self._described or metric is None:
            return None
        self._described.add(name)
        text = f"{metric.meaning}. Unit: {metric.unit}. Measured by: {metric.writer}."
        return self._scalar_metadata.create_summary_metadata(display_name=name, description=text)

    def text(self, name: str, text: str, env_steps: int, wall_time: float) -> None:
        summary = self._summary_pb2.Summary()
        summary.value.add(
            tag=name,
            metadata=self._text_metadata.create_summary_metadata(None, None),
            tensor=self._tensor_util.make_tensor_proto(text),
        )
        self._add(wall_time, env_steps, summary=summary)

    def session_end(self, succeeded: bool, env_steps: int, wall_time: float) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
        content = plugin_data_pb2.HParamsPluginData(
            session_end_info=plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=wall_time)
        )
        summary = self._summary_pb2.Summary()
        summary.value.add(
            tag=metadata.SESSION_END_INFO_TAG, metadata=metadata.create_summary_metadata(content),
            tensor=metadata.NULL_TENSOR,
        )
        self._add(wall_time, env_steps, summary=summary)

    def _add(self, wall_time: float, env_steps: int = 0, **what: Any) -> None:
        event = self._event_pb2.Event(wall_time=wall_time, step=env_steps, **what)
        self._records.write(event.SerializeToString())


def _flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections joined with dots; what TensorBoard has no type for as text."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, bool | int | float | str) else str(value)
    return flat
