"""`build_model`: the built-in networks, and own ones."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from rltrain.errors import ConfigError
from rltrain.fields import ActionSpec, EnvSpec, LeafSpec
from rltrain.models import build_model
from rltrain.models.heads import make_head
from tests.specs import ALL_ACTIONS, TWO_WAY, VECTOR, env_spec, model_section

IMAGE = LeafSpec("obs", "box", (4, 40, 40), "uint8")


def observations(leaf: LeafSpec, num_rows: int) -> dict[str, torch.Tensor]:
    if leaf.dtype == "uint8":
        return {leaf.name: torch.randint(0, 256, (num_rows, *leaf.shape), dtype=torch.uint8)}
    return {leaf.name: torch.randn(num_rows, *leaf.shape)}


@pytest.mark.parametrize("action", ALL_ACTIONS, ids=lambda a: f"{a.kind}{len(a.nvec)}")
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("leaf", [VECTOR, IMAGE], ids=["vector", "image"])
def test_policy_and_value_equal_policy_and_value_alone(action, separate, leaf):
    model = build_model(env_spec(action, leaf), model_section(separate_critic=separate), False, seed=3)
    obs = observations(leaf, 6)
    distribution, value = model.policy_and_value(obs)
    some, all_values = model.policy_and_value(obs, 4)
    torch.testing.assert_close(model.policy(obs).mode(), distribution.mode())
    torch.testing.assert_close(some.entropy(), distribution.entropy()[:4])
    torch.testing.assert_close(model.value(obs), value)
    torch.testing.assert_close(all_values, value)
    assert value.shape == (6,)
    assert value.dtype == torch.float32


@pytest.mark.parametrize(
    ("leaf", "option", "is_separate"),
    [(VECTOR, "auto", True), (IMAGE, "auto", False), (VECTOR, False, False), (IMAGE, True, True)],
    ids=["vector", "image", "vector_shared", "image_separate"],
)
def test_policy_loss_reaches_the_critic_only_where_shared(leaf, option, is_separate):
    model = build_model(env_spec(TWO_WAY, leaf), model_section(separate_critic=option), False)
    model.policy_and_value(observations(leaf, 5))[1].sum().backward()
    touched = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    actor = {name for name, p in model.named_parameters() if name.startswith(("actor", "encoder", "body"))}
    assert bool(touched & actor) is not is_separate
    assert any(name.startswith("critic") for name in touched)


def test_policy_with_separate_critic_does_not_run_the_critic():
    model = build_model(env_spec(), model_section(), False)
    for name, parameter in model.named_parameters():
        if name.startswith("critic"):
            parameter.data.fill_(float("nan"))
    assert torch.isfinite(model.policy(observations(VECTOR, 3)).entropy()).all()


def test_same_seed_gives_the_same_weights_and_another_seed_others():
    """Case S02."""
    one, two, other = (build_model(env_spec(), model_section(), False, seed=s) for s in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.actor.weight_0, other.actor.weight_0)


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    build_model(env_spec(), model_section(), False, seed=5)
    assert torch.equal(torch.rand(1), expected)


def test_initial_policy_is_nearly_uniform():
    model = build_model(env_spec(), model_section(), False)
    assert model.policy({"obs": torch.randn(50, 4) * 3}).entropy().min() > 0.69


def test_empty_hidden_sizes_make_a_linear_policy():
    model = build_model(env_spec(), model_section(hidden_sizes=()), False)
    assert sum(p.numel() for p in model.parameters()) == 4 * 2 + 2 + 4 + 1


def test_normalised_model_of_scaled_observations_acts_as_on_unscaled_ones():
    """Case C06."""
    rows = torch.randn(200, 4)
    models = [build_model(env_spec(), model_section(), True, seed=1) for _ in range(2)]
    models[0].update_statistics({"obs": rows})
    models[1].update_statistics({"obs": rows * 1000})
    a, b = models[0].value({"obs": rows[:9]}), models[1].value({"obs": rows[:9] * 1000})
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert set(models[0].state_dict()) >= {f"normalisers.normalisers.0.{n}" for n in ("mean", "variance", "count")}


class OwnModel(nn.Module):
    """A complete model of a user's."""

    noise_components = 1

    def __init__(self, spec, width=3):
        super().__init__()
        self.layer = nn.Linear(4, width)

        self.head = make_head(spec.action, "auto", 0.0)
        self.outputs = nn.Linear(width, self.head.num_outputs)

    def policy(self, obs):
        return self.head(self.outputs(self.layer(obs["obs"])))

    def value(self, obs):
        return self.layer(obs["obs"])[:, 0]

    def policy_and_value(self, obs, num_policy_rows=None):
        return self.policy({"obs": obs["obs"][:num_policy_rows]}), self.value(obs)


class OldStyle(OwnModel):
    """Lacks an argument and statistics."""

    value = None

    def policy_and_value(self, obs): ...


class PlainPolicy(OwnModel):
    """Returns logits."""

    def policy(self, obs):
        return self.outputs(self.layer(obs["obs"]))


class ColumnValue(OwnModel):
    """Does not squeeze."""

    def value(self, obs):
        return self.layer(obs["obs"])[:, :1]


class DoubleValue(OwnModel):
    """Returns float64."""

    def value(self, obs):
        return super().value(obs).double()


class AllRows(OwnModel):
    """Ignores num_policy_rows."""

    def policy_and_value(self, obs, num_policy_rows=None):
        return self.policy(obs), self.value(obs)


class OtherValue(OwnModel):
    """Computes another value in the joint method."""

    def policy_and_value(self, obs, num_policy_rows=None):
        policy, value = super().policy_and_value(obs, num_policy_rows)
        return policy, value + 1


class OtherPolicy(OwnModel):
    """Computes another policy in the joint method."""

    def policy_and_value(self, obs, num_policy_rows=None):
        outputs = self.outputs(self.layer(obs["obs"]))[:num_policy_rows]
        return self.head(outputs + torch.arange(2.0)), self.value(obs)


class Raises(OwnModel):
    """Fails on any observation."""

    def policy(self, obs):
        raise ValueError("boom")


class Draws(OwnModel):
    """Draws from all generators and counts its calls in a buffer; has a layer that learns while training."""

    def __init__(self, spec):
        super().__init__(spec)
        self.register_buffer("num_calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(4)

    def value(self, obs):
        torch.rand(1), np.random.random_sample(), random.random()
        self.num_calls += 1
        return super().value({"obs": self.norm(obs["obs"])})


class NotAModel:
    """Lacks nearly everything."""

    def __init__(self, spec):
        self.policy = None


def test_own_model_is_built_with_its_kwargs_and_the_seed():
    section = model_section(kind=f"{__name__}:OwnModel", kwargs={"width": 5})
    one, two = (build_model(env_spec(), section, False, seed=2) for _ in range(2))
    assert one.layer.out_features == 5
    assert torch.equal(one.layer.weight, two.layer.weight)


def test_own_model_that_lacks_members_is_refused_naming_them():
    section = model_section(kind=f"{__name__}:NotAModel")
    with pytest.raises(ConfigError, match=r"Module, noise_comp.*, policy\(\), value\(\), policy_and_value\(\), upd"):
        build_model(env_spec(), section, True)


def test_own_model_that_lacks_members_and_an_argument_is_refused_naming_all():
    section = model_section(kind=f"{__name__}:OldStyle")
    with pytest.raises(ConfigError, match=r"lacks value\(\), the argument `num_policy_rows`"):
        build_model(env_spec(), section, False)


def test_own_model_needs_update_statistics_only_to_normalise():
    section = model_section(kind=f"{__name__}:OwnModel")
    build_model(env_spec(), section, False)
    with pytest.raises(ConfigError, match=r"lacks update_statistics\(\)\. "):
        build_model(env_spec(), section, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PlainPolicy", r"policy\(\) returned Tensor without sample, log_prob, entropy; accepted: a Distribution"),
        ("ColumnValue", r"value\(\) returned shape \[2, 1\]; accepted \[2\]: squeeze the last axis"),
        ("DoubleValue", r"value\(\) returned torch.float64; accepted torch.float32"),
        ("AllRows", r"num_policy_rows=1\) returned a distribution whose mode\(\) has shape \[2\]; accepted \[1\]"),
        ("OtherValue", r"returned the values .*, but value\(obs\)"),
        ("OtherPolicy", r"gives actions the log-probabilities .*, but policy\(obs\)"),
    ],
)
def test_own_model_that_returns_what_does_not_fit_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        build_model(env_spec(), model_section(kind=f"{__name__}:{name}"), False)


def test_own_model_that_raises_says_what_it_was_given():
    with pytest.raises(ValueError, match="boom") as caught:
        build_model(env_spec(), model_section(kind=f"{__name__}:Raises"), False)
    assert "2 rows of zeros (obs: torch.float32 [2, 4])" in caught.value.__notes__[0]


def test_own_model_check_leaves_generators_buffers_and_modes_alone():
    states = torch.get_rng_state(), np.random.get_state()[2], random.getstate()
    model = build_model(env_spec(), model_section(kind=f"{__name__}:Draws"), False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[2], random.getstate()) == states[1:]
    assert model.num_calls == 0
    assert model.norm.num_batches_tracked == 0
    assert model.training
    assert model.norm.training


@pytest.mark.parametrize(
    "leaf",
    [
        LeafSpec("obs", "discrete", (), "int64", (5,), (3,)),
        LeafSpec("obs", "multi_discrete", (2, 2), "int32", (2, 3, 4, 5), (1, 1, 0, -1)),
        LeafSpec("obs", "multi_binary", (3,), "int8"),
        IMAGE,
    ],
    ids=["discrete", "multi_discrete", "multi_binary", "image"],
)
def test_own_model_of_the_example_takes_every_kind_of_leaf(leaf):
    build_model(env_spec(TWO_WAY, leaf), model_section(kind="configs.own_model:make_model"), False)


def test_unknown_kind_is_refused_with_the_accepted_ones():
    with pytest.raises(ConfigError, match=r"model.kind = 'mpl' is not known. Accepted: auto, mlp, nature_cnn"):
        build_model(env_spec(), model_section(kind="mpl"), False)


@pytest.mark.timeout(60)
def test_models_and_algorithms_do_not_load_the_compiler():
    code = (
        "import sys, torch; before = set(sys.modules);"
        "import rltrain.models, rltrain.algos.ppo, rltrain.algos.appo;"
        "new = [m for m in set(sys.modules) - before if m.startswith(('torch.optim', 'torch.distributions'))];"
        "assert not new and 'torch._dynamo' not in sys.modules, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_own_model_of_the_example_gives_rows_for_policy_and_value():
    spec = EnvSpec("x", (LeafSpec("obs", "box", (4,), "float32"),), ActionSpec("discrete", (), "int64", (3,), (0,)))
    model = build_model(spec, {"kind": "configs.own_model:make_model", "kwargs": {"width": 8}}, False)

    policy, value = model.policy_and_value({"obs": torch.ones(5, 4)}, 3)

    assert policy.mode().shape == (3,)
    assert value.shape == (5,)
    assert torch.equal(value, model.value({"obs": torch.ones(5, 4)}))
