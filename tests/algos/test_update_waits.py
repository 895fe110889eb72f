"""No update makes the host wait for the device: found on the CPU by what would wait; on a device, marked `gpu`."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from rltrain.algos.train_state import TrainState
from rltrain.host_copies import on_device, valid_rows
from rltrain.inference.cuda_graphs import waiting_fails
from rltrain.models import build_model, native_layers
from rltrain.replay.fragments import FragmentReplay
from tests import learning, replayed
from tests.devices import DEVICES
from tests.fake_cuda import waits
from tests.specs import ALL_ACTIONS, env_spec

NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
FRESH = {
    "ppo rows": ("ppo", {"epochs": 2}), "ppo columns": ("ppo", {"epochs": 1}),
    "ppo clipped": ("ppo", {"epochs": 2, "clip_range_value": 0.2, "max_grad_norm": None}),
    "appo": ("appo", {"epochs": 2}), "impala": ("appo", {"clip_range": None}),
}  # fmt: skip
REPLAYED = {"dqn": {}, "dqn huber": {"loss": "huber", "double": False}, "sac": {}, "td3": {"actor_every_updates": 1}}


class NothingWaits(TorchDispatchMode):
    """Fails at what would make the host wait, were the tensors on a CUDA device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not waits(func, args), f"{func} waits for the device"
        name = func._schema.name.removeprefix("aten::")
        assert name != "lift_fresh", "torch.tensor(...) copies from ordinary memory"
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def nothing_waits(device: str):
    """Let whatever waits for the device fail."""
    if device != "cpu":
        with waiting_fails():
            yield
        return
    with pytest.MonkeyPatch.context() as patch, NothingWaits():
        for name in ("cpu", "numpy", "tolist"):
            patch.setattr(torch.Tensor, name, _refuse(f"Tensor.{name}"))
        patch.setattr(torch, "where", _refuse_numbers(torch.where))
        patch.setattr(torch, "from_numpy", _refuse("torch.from_numpy"))
        yield


def _refuse(what: str):
    def refused(*_, **__):
        raise AssertionError(f"{what} waits for the device")

    return refused


def _refuse_numbers(where):
    """A number goes to the device as a tensor of the CPU does."""

    def checked(condition, a, b):
        assert isinstance(a, torch.Tensor), "torch.where(x, number, ...) waits for the device"
        assert isinstance(b, torch.Tensor), "torch.where(x, ..., number) waits for the device"
        return where(condition, a, b)

    return checked


@pytest.fixture(autouse=True)
def _allow_lanes(monkeypatch):
    """Indices that come from the host go through pinned memory, which `from_numpy` alone does not show."""
    from rltrain.algos import reward_scaling
    from rltrain.replay import fragments

    ready = torch.from_numpy

    def copied(array, device):
        if device.type != "cpu":
            return on_device(array, device)
        with _disable_current_modes():
            return ready(array)

    monkeypatch.setattr(native_layers, "LARGEST_LAYER", 0)  # a device has no layers in C
    monkeypatch.setattr(reward_scaling, "on_device", copied)
    monkeypatch.setattr(fragments, "on_device", copied)


def moved(batch: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    """Return a batch on a device."""
    return {name: x.to(device) for name, x in batch.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda action: f"{action.kind}{len(action.nvec)}")
@pytest.mark.parametrize("name", FRESH)
def test_update_on_fresh_batches_waits_for_nothing(name, action, precision, device):
    algo, options = FRESH[name]
    settings = learning.config(algo, options, env=NORMALIZED, learner={"precision": precision})
    spec = env_spec(action)
    state, update = on(device, settings, spec, learning.start(settings, spec)[1])
    for i in range(2):
        batch = moved(learning.on_policy_batch(build_model(spec, settings.model_settings(), True), spec, i), device)
        num_rows = int(batch["valid"][:-1].sum())
        with nothing_waits(device) if i else contextlib.nullcontext():  # libraries set themselves up at first
            update(state, batch, 0.5, learning.LANES, num_rows)
    assert state.bad_updates == 0


def on(device, settings, spec, update):
    """Return a train state on a device and its update."""
    model = build_model(spec, settings.model_settings(), settings.env.normalize_obs, settings.run.seed)
    return TrainState(model.to(device), settings, learning.NUM_COLUMNS), update


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("leaves", replayed.LEAVES)
@pytest.mark.parametrize("name", REPLAYED)
def test_update_on_a_replay_waits_for_nothing(name, leaves, device):
    algo = name.split()[0]
    settings = replayed.replay_config(algo, REPLAYED[name])
    spec = replayed.spec_for(algo, *replayed.LEAVES[leaves])
    model = build_model(spec, settings.model_settings(), False, settings.run.seed).to(device)
    state = TrainState(model, settings, 1)
    from rltrain.algos import load_algorithm

    update = load_algorithm(algo)(settings.algo.chosen, settings.learner, state)
    for i in range(2):
        batch = moved(replayed.transitions(spec, i), device)
        with nothing_waits(device) if i else contextlib.nullcontext():
            update(batch, 0.5)
    assert state.bad_updates == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_update_with_earlier_fragments_waits_only_for_the_errors_of_the_last_one():
    settings = learning.config("appo", {"epochs": 1})
    spec = env_spec()
    state, update = on("cuda:0", settings, spec, learning.start(settings, spec)[1])
    update.replay = FragmentReplay(32, 0.5, 0.6, 0)
    for i in range(4):
        batch = moved(learning.on_policy_batch(build_model(spec, settings.model_settings(), False), spec, i), "cuda:0")
        with waiting_fails() if i else contextlib.nullcontext():
            update(state, batch, 0.5, learning.LANES, int(learning.NUM_STEPS))
    assert update.replay.priorities.tree.masses.max() > 0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_valid_rows_counted_by_the_caller_are_those_counted_here(share):
    valid = torch.rand(500, generator=torch.Generator().manual_seed(1)) < share
    expected = valid_rows(valid)
    assert torch.equal(valid_rows(valid, len(expected)), expected)
    assert expected.dtype == valid_rows(valid, len(expected)).dtype


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.sum().item(), lambda x: bool(x.sum() > 0), lambda x: float(x[0]), lambda x: x[x > 0],
        lambda x: x.nonzero(), lambda x: x.cpu(), lambda x: x + torch.tensor(1.0), lambda x: torch.where(x > 0, x, 0),
        lambda x: x.tolist(),
    ],
    ids=["item", "bool", "float", "mask", "nonzero", "cpu", "tensor", "where", "tolist"],
)  # fmt: skip
def test_what_waits_is_found(look):
    with pytest.raises(AssertionError, match=r"waits|memory"), nothing_waits("cpu"):
        look(torch.ones(3))


