"""`compile_model`, and what an own model is refused for before it is built."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from rltrain.errors import ConfigError
from rltrain.models import build_model, compile_model
from tests.models.test_models import observations
from tests.specs import VECTOR, env_spec, model_section


@pytest.mark.parametrize("kind", ["mlp", "tests.models.test_models:OwnModel"])
def test_compiled_model_runs_compiled_and_gives_the_same(kind, monkeypatch):
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    plain, compiled = (build_model(env_spec(), model_section(kind=kind), False, seed=1) for _ in range(2))
    compile_model(compiled)
    obs = observations(VECTOR, 5)
    (policy, value), (plain_policy, plain_value) = compiled.policy_and_value(obs), plain.policy_and_value(obs)
    torch.testing.assert_close(value, plain_value)
    torch.testing.assert_close(policy.entropy(), plain_policy.entropy())
    assert counter.frame_count > 0


def test_own_model_with_wrong_arguments_is_refused_naming_them():
    section = model_section(kind="tests.models.test_models:OwnModel", kwargs={"widht": 3})
    with pytest.raises(ConfigError, match=r"model.kwargs = \{'widht': 3\} does not fit .*unexpected .*'widht'"):
        build_model(env_spec(), section, False)
