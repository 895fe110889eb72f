"""The policy on one device: what a row's action depends on, with policies that explore."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rltrain import native
from rltrain.inference.torch_backend import TorchBackend
from rltrain.models import build_model
from tests.replayed import replay_config, spec_for
from tests.specs import FIVE_WAY, env_spec

NUM_ENVS = 6


class Board:
    """Weights of one version."""

    latest_version = 0

    def __init__(self, weights: np.ndarray):
        self.weights = weights

    def read(self, version, out):
        out[...] = self.weights
        return 0


def backend_of(name, algo=None, epsilon=None, max_rows=8, seed=3, **options):
    """Return a backend that has loaded version 0."""
    from rltrain.algos.flat_parameters import FlatParameters

    settings = replay_config(
        name, algo, actors={"num_actors": 1, "groups_per_actor": 1, "envs_per_group": NUM_ENVS}
    ).model_settings()
    spec = spec_for(name)
    model = build_model(spec, settings, False, seed=1)
    if hasattr(model, "set_exploration"):
        model.set_exploration(0.0 if epsilon is None else epsilon)
    flat = FlatParameters(model)
    backend = TorchBackend(spec, settings, False, seed, Board(flat.publish_view()), max_rows, **options)
    backend.load(0)
    return backend


def actions(backend, num_steps, envs):
    """Actions of these envs over steps, on one and the same observation; [num_steps, rows]."""
    backend.obs_rows["obs"][...] = 0.3
    found = []
    for step in range(num_steps):
        steps = np.full(len(envs), step, np.int64)
        found.append(backend.infer(0, len(envs), np.array(envs, np.int64), steps)[0].copy())
    return np.stack(found)


def test_envs_of_a_ladder_explore_each_as_much_as_its_place_says():
    backend = backend_of("dqn", {"epsilon_ladder": True}, epsilon=0.5)
    assert backend.asks_for_envs
    chosen = actions(backend, 400, range(NUM_ENVS))
    greedy = np.bincount(chosen[:, -1]).argmax()
    other = (chosen != greedy).mean(0)
    expected = 0.5 ** (1 + 7 * np.arange(NUM_ENVS) / (NUM_ENVS - 1)) * 4 / 5
    np.testing.assert_allclose(other, expected, atol=0.06)


def test_row_of_a_ladder_depends_on_its_env_and_not_on_its_place_in_the_batch():
    backend = backend_of("dqn", {"epsilon_ladder": True}, epsilon=0.9)
    together = actions(backend, 50, range(NUM_ENVS))
    for envs in ([4], [5, 0, 3]):
        np.testing.assert_array_equal(actions(backend, 50, envs), together[:, envs])


def test_exploration_without_a_ladder_asks_for_no_envs():
    assert not backend_of("dqn").asks_for_envs
    assert not backend_of("sac").asks_for_envs


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_loaded_warm_up_makes_actions_uniform(name):
    backend = backend_of(name, epsilon=True)
    noise = np.zeros((3, 2), np.float32)
    native.uniform(3, np.arange(3), np.zeros(3, np.int64), 2, noise)
    chosen = actions(backend, 1, range(3))[0]
    np.testing.assert_allclose(chosen, 2 * noise - 1, atol=1e-6)


class Flaky(torch.nn.Module):
    """Values that depend on the number of rows below 24; the greedy action does not."""

    def __init__(self, spec):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, obs):
        rows = obs["obs"]
        best = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).expand(len(rows), 5)
        return best + (1e-3 if len(rows) < 24 else 0.0) + 0 * self.scale


def test_batch_sizes_in_which_values_differ_are_not_used():
    """The action alone would not show it: it is a step function of the values."""
    config = replay_config("dqn", model={"kind": f"{__name__}:Flaky"})
    backend = TorchBackend(env_spec(FIVE_WAY), config.model_settings(), False, 0, Board(np.zeros(0)), 32)
    assert backend.sizes == [24, 32]
