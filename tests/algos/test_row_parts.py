"""Minibatches on several threads: the same outputs and gradients as at once, whichever thread is faster."""

from __future__ import annotations

import time

import pytest
import torch

from rltrain.algos import row_parts
from rltrain.algos.flat_parameters import FlatParameters
from rltrain.algos.row_parts import RowParts
from rltrain.fields import LeafSpec
from rltrain.models import build_model
from tests.learning import config, start
from tests.specs import BOX, FIVE_WAY, VECTOR, env_spec, model_section

IMAGE = LeafSpec("obs", "box", (4, 42, 42), "uint8")
KINDS = {
    "mlp": (VECTOR, {"kind": "mlp"}),
    "shared": (VECTOR, {"kind": "mlp", "separate_critic": False}),
    "nature_cnn": (IMAGE, {"kind": "nature_cnn", "activation": "relu"}),
}


def observations(leaf: LeafSpec, num_rows: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    if leaf.dtype == "uint8":
        return {"obs": torch.randint(0, 256, (num_rows, *leaf.shape), generator=generator, dtype=torch.uint8)}
    return {"obs": torch.randn(num_rows, *leaf.shape, generator=generator)}


def parts_of(kind: str, action, num_threads: int) -> tuple[RowParts, dict, torch.Tensor]:
    leaf, section = KINDS[kind]
    model = build_model(env_spec(action, leaf), model_section(**section), False, seed=1)
    flat = FlatParameters(model)
    obs = observations(leaf, 66)
    with torch.no_grad():
        chosen = model.policy(obs).sample(torch.rand(66, model.noise_components))
    return RowParts(model, flat, num_threads, "float32"), obs, chosen


def gradient_of(parts: RowParts, obs: dict, action: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Outputs, and the parameters' gradient for gradients of the outputs that differ in every row."""
    parts.flat.grad.zero_()
    outputs = parts.evaluate(obs, action)
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(len(x), generator=generator) for x in (outputs.log_prob, outputs.entropy, outputs.value)]
    outputs.backward(*given)
    assert not any(x.requires_grad for x in (outputs.log_prob, outputs.entropy, outputs.value))
    return [outputs.log_prob, outputs.entropy, outputs.value], parts.flat.grad.clone()


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """With one torch thread everywhere, as in a learner that shares minibatches out."""
    monkeypatch.setattr(row_parts, "LEAST_WORK", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", [FIVE_WAY, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("num_actions", [66, 60])
def test_parts_give_the_outputs_and_the_gradient_of_the_whole(kind, action, num_actions):
    whole, obs, chosen = parts_of(kind, action, 1)
    parts, _, _ = parts_of(kind, action, 3)
    assert parts._num_parts(66, num_actions, 16) == 6
    expected, gradient = gradient_of(whole, obs, chosen[:num_actions])
    found, other_gradient = gradient_of(parts, obs, chosen[:num_actions])
    assert [len(x) for x in found] == [num_actions, num_actions, 66]
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-3, atol=1e-4)
    assert gradient.abs().sum() > 0
    torch.testing.assert_close(parts.values(obs), expected[2], rtol=1e-4, atol=1e-5)


def test_gradient_does_not_depend_on_which_thread_is_faster(monkeypatch):
    parts, obs, chosen = parts_of("mlp", FIVE_WAY, 2)
    found = []
    for slow in (None, 0, 1, 3):
        real, calls = parts.model.policy_and_value, []

        def delayed(rows, num_rows, real=real, slow=slow, calls=calls):
            calls.append(None)
            if len(calls) - 1 == slow:
                time.sleep(0.05)
            return real(rows, num_rows)

        with monkeypatch.context() as patch:
            patch.setattr(parts.model, "policy_and_value", delayed)
            found.append(gradient_of(parts, obs, chosen)[1])
        assert len(calls) == 4
    assert all(torch.equal(x, found[0]) for x in found)


def test_error_in_a_part_is_the_callers():
    parts, obs, chosen = parts_of("mlp", FIVE_WAY, 2)
    broken = {name: x.clone() for name, x in obs.items()}
    with pytest.raises(RuntimeError):
        parts.evaluate({name: x[:, :1] for name, x in broken.items()}, chosen)
    assert len(gradient_of(parts, obs, chosen)[0]) == 3, "it goes on afterwards"


def test_small_minibatch_stays_whole_and_no_part_is_without_actions(monkeypatch):
    parts, _, _ = parts_of("mlp", FIVE_WAY, 4)
    assert parts._num_parts(64, 64, 16) == 8
    assert parts._num_parts(64, 40, 16) == 2
    assert parts._num_parts(3, 1, 16) == 1
    monkeypatch.setattr(row_parts, "LEAST_WORK", 1 << 22)
    assert parts._num_parts(64, 64, 16) == 1


def test_images_are_cut_to_the_size_of_a_cache_also_with_one_thread(monkeypatch):
    parts, obs, chosen = parts_of("nature_cnn", FIVE_WAY, 1)
    frame = 4 * 4 * 42 * 42
    assert parts._num_parts(66, 66, frame) == 1
    assert parts._num_parts(512, 512, 4 * 4 * 84 * 84) == 7
    assert parts._num_parts(512, 3, 4 * 4 * 84 * 84) == 1, "no part without an action"
    parts.is_cut = False
    assert parts._num_parts(512, 512, 4 * 4 * 84 * 84) == 1
    expected, gradient = gradient_of(parts, obs, chosen)
    monkeypatch.setattr(row_parts, "CACHED_BYTES", 8 * frame)
    parts.is_cut = True
    assert parts._num_parts(66, 66, frame) == 9
    calls = []
    real = parts.model.value
    monkeypatch.setattr(parts.model, "value", lambda rows: calls.append(len(rows["obs"])) or real(rows))
    found, other_gradient = gradient_of(parts, obs, chosen)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.values(obs), expected[2], rtol=1e-4, atol=1e-5)
    assert calls == [8] * 8 + [2]


@pytest.mark.parametrize(
    ("name", "kind", "threads", "expected"),
    [
        ("ppo", "mlp", 2, 2), ("appo", "mlp", 3, 3), ("ppo", "mlp", 1, 1),
        ("ppo", "configs.own_model:make_model", 2, 1), ("ppo", "mlp", "auto", 1),
    ],
)  # fmt: skip
def test_threads_are_the_learners_unless_the_network_is_ones_own(name, kind, threads, expected):
    settings = config(name, learner={"num_threads": threads}, model={"kind": kind})
    rows = start(settings, env_spec())[0].rows
    assert (rows.num_threads, rows.is_cut) == (expected, ":" not in kind)
