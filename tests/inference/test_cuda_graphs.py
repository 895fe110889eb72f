"""The forward pass on a CUDA device, with a device that is not there; on one where there is one, marked `gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrain.algos.flat_parameters import FlatParameters
from rltrain.inference import cuda_graphs
from rltrain.inference.cuda_graphs import CudaForward, waiting_fails
from rltrain.inference.torch_backend import TorchBackend
from rltrain.models import native_layers
from tests.devices import CUDA
from tests.fake_cuda import FakeCuda, TorchOn
from tests.inference.test_torch_backend import Board, backend_of
from tests.replayed import replay_config
from tests.specs import FIVE_WAY, env_spec

ROWS = 40
CASES = {
    "values": ("dqn", {"epsilon": 0.3}),
    "ladder": ("dqn", {"algo": {"epsilon_ladder": True}, "epsilon": 0.9}),
    "squashed": ("sac", {"epsilon": False}),
    "deterministic": ("td3", {"epsilon": False}),
    "actor and critic": ("ppo", {}),
}


@pytest.fixture
def on_fake_cuda(monkeypatch):
    """Return what puts a backend of the CPU on a device that is not there; returns also the warnings."""
    monkeypatch.setattr(native_layers, "LARGEST_LAYER", 0)  # a device has no layers in C

    def put(backend: TorchBackend, graphs: bool = True, **how) -> tuple[FakeCuda, list[str]]:
        cuda, told = FakeCuda(**how), []
        monkeypatch.setattr(cuda_graphs, "torch", TorchOn(cuda))
        envs = backend.env_indices if backend.asks_for_envs else None
        backend.cuda = CudaForward(
            torch.device("cpu"), backend.staged, backend.noise, envs, backend._run_model, graphs, told.append
        )
        return cuda, told

    return put


def answers(backend: TorchBackend, num_rows: int, step: int, version: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return actions and log-probabilities of rows whose observations depend on the step."""
    for name, rows in backend.obs_rows.items():
        rng = np.random.default_rng(step)
        rows[:num_rows] = rng.normal(size=(num_rows, *rows.shape[1:])).astype(rows.dtype)
        assert name
    envs = np.arange(num_rows, dtype=np.int64)
    return tuple(x.copy() for x in backend.infer(version, num_rows, envs, np.full(num_rows, step, np.int64)))


@pytest.mark.parametrize("case", CASES)
def test_graphs_give_what_the_model_gives_for_every_size(case, on_fake_cuda):
    name, options = CASES[case]
    plain, graphed = (backend_of(name, max_rows=ROWS, **options) for _ in range(2))
    cuda, told = on_fake_cuda(graphed)
    for step, num_rows in enumerate((3, 40, 17, 3, 40)):
        for expected, found in zip(answers(plain, num_rows, step), answers(graphed, num_rows, step), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert told == []
    sizes = {(0, plain.padded(n)) for n in (3, 17, 40)} | {(1, 40)}
    assert set(graphed.cuda.graphs) == sizes, "both models' largest at boot, the others when they occur"
    assert cuda.log.count("capture") == len(sizes)
    assert cuda.log.count("pool") == 1, "shared by all"


def test_graph_uses_weights_that_are_loaded_after_it_was_captured(on_fake_cuda):
    plain, graphed = (backend_of("sac", max_rows=8, epsilon=False) for _ in range(2))
    cuda, _ = on_fake_cuda(graphed)
    before = answers(graphed, 8, 0)[0]
    num_captures = cuda.log.count("capture")
    for backend in (plain, graphed):
        backend.board.weights = backend.board.weights.copy()
        backend.board.weights[: plain.flats[0].flat.numel() * 4].view(np.float32)[...] *= 3
        backend.loaded = [None, None]
        assert backend.load(0) == 0
    after = answers(graphed, 8, 0)[0]
    assert not np.array_equal(after, before)
    np.testing.assert_array_equal(after, answers(plain, 8, 0)[0])
    assert cuda.log.count("capture") == num_captures


def test_host_memory_is_written_again_only_after_the_copies_from_and_to_it(on_fake_cuda):
    backend = backend_of("td3", max_rows=8)
    cuda, _ = on_fake_cuda(backend)
    answers(backend, 8, 0)
    cuda.log.clear()
    answers(backend, 8, 1)
    assert cuda.log == ["replay", "wait", "wait"], "the forward pass, the copy of its results"
    cuda.log.clear()
    backend.loaded = [None, None]
    backend.board.read = lambda version, out: cuda.log.append("read")
    assert backend.load(0) is None
    assert cuda.log == ["wait", "read"], "the copy of the weights before has to have ended"


@pytest.mark.parametrize(
    ("how", "reason", "advice"),
    [({"fails": "operation not permitted when stream is capturing"}, "not permitted", ".item()"),
     ({"changes": True}, "does not compute what the model computes", "without noise of its own")],
)
def test_failed_capture_runs_without_graphs_and_warns_once(how, reason, advice, on_fake_cuda):
    plain, other = (backend_of("td3", max_rows=ROWS) for _ in range(2))
    cuda, told = on_fake_cuda(other, **how)
    for step, num_rows in enumerate((3, 40, 17)):
        np.testing.assert_array_equal(answers(other, num_rows, step)[0], answers(plain, num_rows, step)[0])
    assert len(told) == 1
    assert reason in told[0]
    assert advice in told[0]
    assert "pipeline.cuda_graphs" in told[0]
    assert "\n" not in told[0]
    assert cuda.log.count("capture") == 1
    assert other.cuda.graphs == {}


class Looking(torch.nn.Module):
    """Its code looks at a value."""

    def __init__(self, spec):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, obs):
        shift = 1.0 if obs["obs"].sum() > 0 else 0.0
        return obs["obs"].mean(1, keepdim=True).expand(-1, 5) * self.scale + shift


def test_model_that_looks_at_values_is_found_before_anything_is_captured(on_fake_cuda):
    config = replay_config("dqn", model={"kind": f"{__name__}:Looking"})
    spec = env_spec(FIVE_WAY)
    backend = TorchBackend(spec, config.model_settings(), False, 0, Board(np.zeros(0)), 32)
    cuda, told = on_fake_cuda(backend)
    assert len(told) == 1
    assert "waits for the device" in told[0]
    assert cuda.log.count("capture") == 0
    assert cuda.mode == 0, "set back"
    assert answers(backend, 8, 0)[0].shape == (8,)


def test_without_the_option_nothing_is_captured(on_fake_cuda):
    backend = backend_of("td3", max_rows=8)
    cuda, told = on_fake_cuda(backend, graphs=False)
    answers(backend, 8, 0)
    assert "capture" not in cuda.log
    assert "replay" not in cuda.log
    assert told == []


def test_policy_of_a_lower_precision_gives_float32_log_probabilities():
    backend = backend_of("td3", max_rows=8)
    with torch.no_grad():
        part = slice(0, 8)
        obs = {name: x[part] for name, x in backend.staged.items()}

        class Low:
            def __init__(self, policy):
                self.policy = policy

            def sample(self, uniform):
                return self.policy.sample(uniform)

            def log_prob(self, action):
                return self.policy.log_prob(action).bfloat16()

        low = backend._distribution
        backend._distribution = lambda model, rows: Low(low(model, rows))
        assert backend._run_model(0, obs, backend.noise[part] + 0.5, None)[1].dtype == torch.float32


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("case", CASES)
def test_graphs_on_a_device_give_what_eager_gives_for_every_size_and_both_models(case, device):
    """Seconds."""
    name, options = CASES[case]
    told: list[str] = []
    sides = [
        backend_of(name, max_rows=ROWS, device=device, cuda_graphs=graphs, warn=told.append, **options)
        for graphs in (False, True)
    ]
    sizes = sides[0].sizes
    for side in sides:
        side.load(1)
    for version in (0, 1):
        for step, num_rows in enumerate((*sizes, 3, 17, *sizes)):
            eager, graphed = (answers(side, num_rows, step, version) for side in sides)
            np.testing.assert_array_equal(graphed[0], eager[0])
            np.testing.assert_array_equal(graphed[1], eager[1])
    assert told == []
    assert set(sides[1].cuda.graphs) == {(model, size) for model in (0, 1) for size in sizes}
    assert sides[0].cuda.graphs == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_waiting_fails_finds_a_wait_on_a_device():
    x = torch.ones(3, device="cuda:0")

    def look() -> float:
        with waiting_fails():
            return x.sum().item()

    with pytest.raises(RuntimeError, match="synchron"):
        look()
    assert x.sum().item() == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_weights_travel_to_a_device_and_back():
    model = torch.nn.Linear(5, 7).to("cuda:0")
    flat = FlatParameters(model)
    wanted = np.random.default_rng(0).integers(0, 100, flat.weight_bytes).astype(np.uint8)
    flat.load(wanted, non_blocking=True)
    np.testing.assert_array_equal(flat.publish_view(), wanted)
