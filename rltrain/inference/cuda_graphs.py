"""The forward pass on a CUDA device: one stream, static memory, and one CUDA graph for each size of batch.

A small network's forward pass is tens of kernels of a few microseconds each, and launching them one by one takes longer
than they run. A graph launches all of them at once, always with the same memory: inputs are copied into it, outputs out
of it, and weights change in place. Two models times the sizes of batches that occur make the graphs, captured when each
occurs for the first time, the largest at boot. They share one pool of memory, as none of them leaves anything in it:
what it computes is copied out of the pool within the graph.

A model that waits for the device while it computes cannot be captured. That is tried before the capture, as a failed
capture leaves the allocator with one that never ended. Then all batches run without graphs, and one warning says so.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltrain.algos.flat_parameters import FlatParameters

Forward = Callable[[int, dict[str, Tensor], Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(which model, observations, uniforms, env indices) -> (actions, log-probabilities), all on the device."""


@contextlib.contextmanager
def waiting_fails() -> Iterator[None]:
    """Let torch raise a RuntimeError, inside, where an operation would make the host wait for a CUDA device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says each time that it does not find all of them
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class GraphMismatchError(RuntimeError):
    """A graph computes something else than what was captured."""


class CudaForward:
    """Runs batches of padded sizes.

    Args:
        device: a CUDA device.
        observations: name -> [rows, ...], pinned; what the caller fills before `run`.
        noise: float32 [rows, noise_components], pinned, the same.
        env_indices: int64 [rows], pinned, the same; None where a policy does not look at them.
        forward: the policy; called with slices of static memory, without gradient.
        uses_graphs: whether to capture graphs.
        warn: told once why there are none, where some were wanted.

    Concurrency: for one thread, the only one of its process that computes on a device while a graph is captured.
    """

    def __init__(
        self, device: torch.device, observations: Mapping[str, Tensor], noise: Tensor, env_indices: Tensor | None,
        forward: Forward, uses_graphs: bool, warn: Callable[[str], None],
    ):
        self.device, self.forward, self.warn = device, forward, warn
        self.uses_graphs = uses_graphs
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.hosts = [*observations.values(), noise, *([] if env_indices is None else [env_indices])]
        self.inputs = [torch.empty(host.shape, dtype=host.dtype, device=device) for host in self.hosts]
        self.names = list(observations)
        self.computed, self.copied = torch.cuda.Event(), torch.cuda.Event()
        self.weights_copied = [torch.cuda.Event(), torch.cuda.Event()]
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        """(model, rows) -> its graph."""
        self._pool: Any = None
        most = len(noise)
        with torch.cuda.stream(self.stream):
            self._send(most)
            with torch.inference_mode():
                results = self.forward(0, *self._arguments(most))
            self.outputs = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in results]
            """Actions and log-probabilities, [rows, ...]."""
            is_pinned = device.type == "cuda"
            self.results = [torch.empty(x.shape, dtype=x.dtype, pin_memory=is_pinned) for x in results]
        for model in (0, 1):
            self.run(model, most, most)

    def run(
        self, model: int, num_rows: int, size: int, enter: Callable[[str], object] = lambda state: None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute a batch; what the caller has filled may be written again once this returns.

        Args:
            model: 0 or 1.
            num_rows: rows that are wanted.
            size: rows that are computed, one of a small number of sizes, >= num_rows.
            enter: told of the states `h2d`, `forward` and `d2h` as they begin.

        Returns:
            (actions [num_rows, ...], log-probabilities [num_rows]), valid until the next call.
        """
        with torch.cuda.stream(self.stream):
            enter("h2d")
            self._send(size)
            enter("forward")
            graph = self._graph(model, size)
            if graph is None:
                self._compute(model, size)
            else:
                graph.replay()
            self.computed.record(self.stream)
            for result, output in zip(self.results, self.outputs, strict=True):
                result[:size].copy_(output[:size], non_blocking=True)
            self.copied.record(self.stream)
        self.computed.synchronize()
        enter("d2h")
        self.copied.synchronize()
        action, logp = self.results
        return action[:num_rows].numpy(), logp[:num_rows].numpy()

    def wait_weights(self, model: int) -> None:
        """Wait until the last `load` of a model has read the host's copy, which may be written again then."""
        self.weights_copied[model].synchronize()

    def load(self, model: int, flat: FlatParameters) -> None:
        """Set a model's weights from the pinned memory of `flat`, in one copy that is not waited for."""
        with torch.cuda.stream(self.stream):
            flat.load(flat.host_bytes, non_blocking=True)
            self.weights_copied[model].record(self.stream)

    def _send(self, size: int) -> None:
        for host, device in zip(self.hosts, self.inputs, strict=True):
            device[:size].copy_(host[:size], non_blocking=True)

    def _arguments(self, size: int) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        parts = [x[:size] for x in self.inputs]
        count = len(self.names)
        envs = parts[count + 1] if len(parts) > count + 1 else None
        return dict(zip(self.names, parts, strict=False)), parts[count], envs

    @torch.inference_mode()
    def _compute(self, model: int, size: int) -> None:
        for output, result in zip(self.outputs, self.forward(model, *self._arguments(size)), strict=True):
            output[:size].copy_(result)

    def _graph(self, model: int, size: int) -> torch.cuda.CUDAGraph | None:
        """The graph of a model and a size, captured when it is not there; None where there are to be none."""
        if not self.uses_graphs:
            return None
        if (model, size) not in self.graphs:
            try:
                self.graphs[model, size] = self._capture(model, size)
            except RuntimeError as error:  # what CUDA and torch raise, out of memory included
                self.uses_graphs = False
                self.graphs.clear()
                reason = str(error).strip().partition("\n")[0]
                self.warn(
                    f"inference runs without CUDA graphs, one kernel after the other: a batch of {size} rows could not "
                    f"be captured ({reason}). {_advice(error)} pipeline.cuda_graphs = false leaves this warning out."
                )
                return None
        return self.graphs[model, size]

    def _capture(self, model: int, size: int) -> torch.cuda.CUDAGraph:
        """Capture what `_compute` does, after it was done twice: libraries set themselves up at the first time.

        Raises:
            RuntimeError: it cannot be captured.
            GraphMismatchError: the graph does not compute the same.
        """
        self._compute(model, size)
        with waiting_fails():
            self._compute(model, size)
        expected = [output[:size].clone() for output in self.outputs]
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self._pool, stream=self.stream):
            self._compute(model, size)
        for output in self.outputs:
            output[:size].zero_()
        graph.replay()
        if not all(_are_same(output[:size], x) for output, x in zip(self.outputs, expected, strict=True)):
            raise GraphMismatchError("its graph does not compute what the model computes")
        return graph


def _advice(error: RuntimeError) -> str:
    """Say what may help against a failed capture."""
    if isinstance(error, torch.OutOfMemoryError):
        return "A smaller pipeline.max_batch_size needs less memory."
    if isinstance(error, GraphMismatchError):
        return "A network of your own must give the same for the same observations, without noise of its own."
    return "A network of your own must not look at values on the device (.item(), `if tensor`, boolean masks)."


def _are_same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits that matter are the same; NaN is the same as NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
