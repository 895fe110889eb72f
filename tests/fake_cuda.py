"""A CUDA device that is not there: streams and events that only note their order, graphs that replay what was captured.

What a capture records is run again as CUDA runs a graph: the same operations on the same memory, no Python in between.
"""

from __future__ import annotations

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")
"""Operations for which the host has to wait for values of a device."""


def waits(func, args) -> bool:
    """Return whether an operation waits for the device: also a mask as an index."""
    name = func._schema.name.removeprefix("aten::")
    if name in ("index", "index_put_", "_index_put_impl_"):
        return any(x is not None and x.dtype == torch.bool for x in args[1])
    return name in WAITS


class Recorder(TorchDispatchMode):
    """Runs every operation and keeps it; fails, as a capture and the debug mode do, where one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if waits(func, args):
            raise RuntimeError(f"{func} waits for the device\nmore lines")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


class Graph:
    """What `torch.cuda.CUDAGraph` is."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.calls: list[tuple] = []

    def replay(self) -> None:
        """Run again what was captured, into the memory of then."""
        self.cuda.log.append("replay")
        with torch.inference_mode():
            for func, args, kwargs, before in self.calls:
                after = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Stream:
    """What `torch.cuda.Stream` is."""

    def wait_stream(self, other: object) -> None:
        """Do nothing: everything runs at once."""


class Event:
    """What `torch.cuda.Event` is; a wait for one is noted."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.is_recorded = cuda, False

    def record(self, stream: object) -> None:
        """Note the place."""
        assert isinstance(stream, Stream), "events are recorded on the server's stream"
        self.is_recorded = True

    def synchronize(self) -> None:
        """Return at once."""
        self.cuda.log.append("wait")


class FakeCuda:
    """Stands in for `torch.cuda` as far as `inference.cuda_graphs` uses it.

    Args:
        fails: what each capture fails with as it ends, or None.
        changes: whether a graph computes something else than what was captured.
    """

    def __init__(self, fails: str | None = None, changes: bool = False) -> None:
        self.fails, self.changes = fails, changes
        self.log: list[str] = []
        self.mode = 0
        self._recorder: contextlib.AbstractContextManager = contextlib.nullcontext()

    def Stream(self, device):
        return Stream()

    def Event(self):
        return Event(self)

    def CUDAGraph(self):
        return Graph(self)

    def current_stream(self, device):
        return Stream()

    def stream(self, stream):
        return contextlib.nullcontext()

    def device(self, device):
        return contextlib.nullcontext()

    def graph_pool_handle(self):
        self.log.append("pool")
        return "pool"

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode) -> None:
        """Let everything that waits fail until the mode is set back."""
        self._recorder.__exit__(None, None, None)
        self._recorder = Recorder() if mode == "error" else contextlib.nullcontext()
        self._recorder.__enter__()
        self.mode = mode

    @contextlib.contextmanager
    def graph(self, graph, pool, stream):
        self.log.append("capture")
        with Recorder() as recorder:
            yield
        if self.fails is not None:
            raise RuntimeError(self.fails)
        graph.calls = recorder.calls[:-1] if self.changes else recorder.calls


class TorchOn:
    """The module `torch`, but with another `cuda`."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def __getattr__(self, name):
        return getattr(torch, name)
