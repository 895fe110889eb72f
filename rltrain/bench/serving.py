"""An inference server in a process of its own and what asks it: shared by the benches of batching and of weights.

The server is a run's own, `workers.inference.InferenceServer`, with a small policy. Requests come from the bench's own
process, which stands for all actors: every group of envs has a lane, a slot of its own for its observations, and at
most one request in flight. Slots are never published; nobody learns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rltrain.bench.partner import Partner
from rltrain.fields import ActionSpec, EnvSpec, FragmentSchema, LeafSpec
from rltrain.shm.arena import Arena, ArenaLayout
from rltrain.shm.control import Control
from rltrain.shm.counters import CounterBoard
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.weights import WeightBoard

OPTION = "--device"
OBS_SIZE = 8
_ACTION = ActionSpec("discrete", (), "int64", nvec=(4,), start=(0,))
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Policy:
    """What the server runs.

    Args:
        hidden_sizes: of the network, two layers or more.
        device: where, as `learner.device`.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    device: str = "cpu"

    def settings(self) -> dict[str, Any]:
        """Return the `model` section as `build_model` takes it."""
        from rltrain.config.schema import ModelSection

        section = ModelSection(hidden_sizes=self.hidden_sizes)
        return {**section.model_dump(mode="json"), "policy": "actor_critic"}


def spec() -> EnvSpec:
    """Return what the requests' observations and actions are."""
    return EnvSpec("bench", (LeafSpec("obs", "box", (OBS_SIZE,), "float32"),), _ACTION)


@dataclass(frozen=True)
class Served:
    """What the server counted between two moments.

    Args:
        counters: name -> difference.
        histograms: name -> counts, int64 [bins].
        busy_share: share of the time in which it neither waited for requests nor for fuller batches.
    """

    counters: dict[str, float]
    histograms: dict[str, np.ndarray]
    busy_share: float


class Serving:
    """A server on an arena of its own; a context manager that ends it.

    Args:
        num_groups: lanes.
        rows: envs of a group.
        policy: what it runs.

    Raises:
        ConfigError: its device is not on this machine.
    """

    def __init__(self, num_groups: int, rows: int, policy: Policy):
        from rltrain.algos.flat_parameters import FlatParameters
        from rltrain.models import build_model
        from rltrain.workers.device import resolve_device

        resolve_device(policy.device, OPTION)  # refused before anything is started
        self.num_groups, self.rows = num_groups, rows
        self.model = build_model(spec(), policy.settings(), False, 0)
        self.flat = FlatParameters(self.model)
        schema = FragmentSchema.for_env(spec(), 2, rows)
        layout = ArenaLayout.plan(schema, num_groups, 1, num_groups, self.flat.weight_bytes, 0, ("inference",))
        self.arena = Arena.create(layout)
        self.board, self.control = WeightBoard(self.arena), Control(self.arena)
        self.mailboxes = Mailboxes(self.arena)
        self.row = CounterBoard(self.arena).row(0)
        for lane in range(num_groups):
            self.mailboxes.set_live(lane, True)
        self.version = 0
        self.board.publish(0, self.flat.publish_view())
        self._partner: Partner | None = None
        try:
            self._partner = Partner("rltrain.bench.serving", self.arena, asdict(policy))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server; may be called twice."""
        if self._partner is not None:
            self._partner.close()
        self.arena.close()

    def check(self) -> None:
        """Find out whether the server lives.

        Raises:
            PartnerError: it does not.
        """
        assert self._partner is not None, "started"
        self._partner.check()

    def serve(self, batcher: Mapping[str, Any], ask: Callable[[], object]) -> Served:
        """Let the server answer, with some settings, for as long as `ask` takes.

        Args:
            batcher: fields of `inference.batcher.BatcherSettings`.
            ask: makes requests; when it returns none is open.
        """
        assert self._partner is not None, "started"
        self.control.stop = False
        lives = self.row.num_lives
        self._partner.ask(batcher=dict(batcher))
        while self.row.num_lives == lives:  # the server has taken its row
            self._partner.check()
            time.sleep(1e-3)
        before = self._counted()
        ask()
        after = self._counted()
        self.control.stop = True
        self.mailboxes.post(0, 0, 0, 0, None)  # wakes it
        self._partner.answer(_ANSWER_S)
        self.mailboxes.cancel(0)
        times = {name: after[2][name] - value for name, value in before[2].items()}
        total = sum(times.values())
        waits = times["wait_request"] + times["batch_delay"]
        return Served(
            {name: after[0][name] - value for name, value in before[0].items()},
            {name: after[1][name] - value for name, value in before[1].items()},
            1 - waits / total if total else 0.0,
        )

    def _counted(self) -> tuple[dict[str, float], dict[str, np.ndarray], dict[str, int]]:
        histograms = {name: self.row.histogram(name) for name in ("batch_size_rows", "queue_delay_us", "service_us")}
        return self.row.counters(), histograms, self.row.state_ns()


def partner(arena: Arena, settings: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, float]]:
    """Return what runs the server with the settings of an order until the stop word is set: see `bench.partner`."""
    import os

    import torch

    from rltrain.inference.torch_backend import TorchBackend
    from rltrain.workers.device import take_device
    from rltrain.workers.inference import InferenceServer

    torch.set_num_threads(1)
    policy = Policy(tuple(settings["hidden_sizes"]), settings["device"])
    schema = arena.layout.schema
    most = arena.layout.num_lanes * schema.num_envs
    backend = TorchBackend(
        spec(), policy.settings(), False, 0, WeightBoard(arena), most, device=take_device(policy.device, OPTION)
    )

    def answer(order: dict[str, Any]) -> dict[str, float]:
        batcher = {**order["batcher"], "preferred_batch_sizes": tuple(order["batcher"]["preferred_batch_sizes"])}
        server = InferenceServer({"counter_row": 0, "batcher": batcher}, arena, backend)
        server.counters.start(os.getpid())
        server.run()
        return {}

    return answer
