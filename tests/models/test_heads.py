"""Heads: each action space gets a distribution whose actions are stored actions."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec
from rltrain.models.heads import make_head
from tests.specs import ALL_ACTIONS, BOX, FIVE_WAY, MULTI_DISCRETE


@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda a: f"{a.kind}{len(a.nvec)}")
@pytest.mark.parametrize("method", ["sample", "mode"])
def test_head_actions_have_the_stored_shape_and_dtype(action, method):
    head = make_head(action, "auto", 0.0)
    distribution = head(torch.randn(7, head.num_outputs))
    uniform = torch.rand(7, head.noise_components).clamp(1e-6, 1 - 1e-6)
    chosen = distribution.sample(uniform) if method == "sample" else distribution.mode()
    assert chosen.shape == (7, *action.stored_shape)
    assert str(chosen.dtype) == f"torch.{action.stored_dtype}"
    assert distribution.log_prob(chosen).shape == distribution.entropy().shape == (7,)
    if action.nvec:
        components = chosen.view(7, -1)
        assert (components >= 0).all()
        assert (components < torch.tensor(action.nvec)).all()


def test_multi_discrete_head_never_chooses_a_value_that_a_component_lacks():
    head = make_head(MULTI_DISCRETE, "auto", 0.0)
    grid = ((torch.arange(3000) + 0.5) / 3000)[:, None].expand(3000, 3)
    chosen = head(torch.zeros(3000, head.num_outputs)).sample(grid)
    for component, n in enumerate(MULTI_DISCRETE.nvec):
        counts = torch.bincount(chosen[:, component], minlength=n)
        assert counts.tolist() == pytest.approx([3000 / n] * n, abs=2)


def test_gaussian_head_starts_at_the_configured_log_std():
    head = make_head(BOX, "gaussian", -1.5)
    assert head.log_std.tolist() == [-1.5, -1.5]


def test_squashed_head_with_an_infinite_bound_is_refused():
    action = ActionSpec("box", (1,), "float32", low=(-1.0,), high=(float("inf"),))
    with pytest.raises(ConfigError, match=r"model.action_distribution = 'squashed_gaussian' needs finite bounds"):
        make_head(action, "squashed_gaussian", 0.0)


def test_gaussian_for_discrete_actions_is_refused():
    with pytest.raises(ConfigError, match="is for Box actions, but this env's are discrete"):
        make_head(FIVE_WAY, "gaussian", 0.0)


class Operations(TorchDispatchMode):
    """Notes the names of all tensor operations."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda a: f"{a.kind}{len(a.nvec)}")
def test_head_of_bfloat16_outputs_computes_in_float32(action):
    """Under autocast the outputs come in bfloat16, and matrix products would go on in it."""
    head = make_head(action, "auto", 0.0)
    outputs = torch.randn(7, head.num_outputs).bfloat16()
    with Operations() as operations:
        distribution = head(outputs)
        chosen = distribution.mode()
        logp, entropy = distribution.log_prob(chosen), distribution.entropy()
    assert logp.dtype == entropy.dtype == torch.float32
    assert not operations.names & {"mm", "mv", "addmm", "addmv", "bmm", "dot", "matmul", "linear"}
