"""Both precisions on the CPU and on a device: how far apart answers and updates are, and that they are apart at all."""

from __future__ import annotations

import pytest
import torch

from rltrain.algos.train_state import TrainState
from rltrain.inference.torch_backend import TorchBackend
from rltrain.models import build_model
from tests import learning
from tests.devices import DEVICES
from tests.inference.test_torch_backend import Board
from tests.replayed import IMAGE
from tests.specs import BOX, FIVE_WAY, VECTOR, env_spec

ROWS = 64
CASES = {"vector": (VECTOR, FIVE_WAY), "image": (IMAGE, FIVE_WAY), "box": (VECTOR, BOX)}
PRECISIONS = ("float32", "bfloat16")
LARGEST_DIFFERENCE = 0.1
"""Of a log-probability, in networks with weights as large as those of trained ones; a bfloat16 has eight bits."""


def model_for(spec, seed):
    """Return a network whose heads are as large as its other layers, not near zero as fresh ones."""
    settings = learning.config("ppo").model_settings()
    model = build_model(spec, settings, False, seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            fan_in = parameter[0].numel()
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_answers_in_bfloat16_are_near_those_in_float32(case, device):
    from rltrain.algos.flat_parameters import FlatParameters

    leaf, action = CASES[case]
    spec = env_spec(action, leaf)
    weights = FlatParameters(model_for(spec, 1)).publish_view()
    settings = learning.config("ppo").model_settings()
    found = []
    actions = None
    for precision in PRECISIONS:
        backend = TorchBackend(spec, settings, False, 0, Board(weights), ROWS, device=device, precision=precision)
        backend.load(0)
        if backend.cuda is not None:
            torch.cuda.synchronize()
        generator = torch.Generator().manual_seed(5)
        rows = torch.randn(ROWS, *leaf.shape, generator=generator)
        rows = (rows * 60 + 128).clamp(0, 255) if leaf.dtype == "uint8" else rows
        backend.staged[leaf.name][:ROWS] = rows.to(backend.staged[leaf.name].dtype)
        obs = {leaf.name: backend.staged[leaf.name][:ROWS].to(device)}
        noise = torch.rand(ROWS, backend.noise.shape[1], generator=generator).clamp(1e-3, 1 - 1e-3).to(device)
        distribution = backend._distribution(backend.models[0], obs)
        actions = distribution.sample(noise) if actions is None else actions
        with torch.inference_mode():
            logp = distribution.log_prob(actions)
        assert logp.dtype == torch.float32
        found.append(logp.cpu())
    difference = (found[0] - found[1]).abs()
    assert 0 < difference.max() < LARGEST_DIFFERENCE
    assert difference.mean() < LARGEST_DIFFERENCE / 5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("epochs", [1, 2])
def test_update_in_bfloat16_moves_the_weights_nearly_as_in_float32(epochs, device):
    spec = env_spec(FIVE_WAY)
    moves = []
    for precision in PRECISIONS:
        settings = learning.config("ppo", {"epochs": epochs}, learner={"precision": precision})
        model = model_for(spec, 1)
        batch = {name: x.to(device) for name, x in learning.on_policy_batch(model, spec).items()}
        state = TrainState(model.to(device), settings, learning.NUM_COLUMNS)
        update = learning.start(settings, spec)[1]
        before = learning.weights_of(state)
        update(state, batch, 0.0, learning.LANES, int(batch["valid"][:-1].sum()))
        moves.append((learning.weights_of(state) - before).double().cpu())
        assert state.bad_updates == 0
    likeness = torch.nn.functional.cosine_similarity(*moves, dim=0)
    assert 0.9 < likeness < 1 - 1e-9
