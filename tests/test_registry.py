"""Factories that a configuration names: what it may call, and what it must not."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys

import pytest
from packaging.requirements import Requirement

from rltrain import registry
from rltrain.config.load import load
from rltrain.errors import ConfigError
from rltrain.registry import load_factory, refusal

FOREIGN = [
    "os:system", "posix:system", "subprocess:run", "shutil:rmtree", "builtins:eval", "_io:open", "antigravity:fly",
    "importlib._bootstrap:exec", "torch.hub:load", "numpy:load", "sympy:sympify", "rich.pretty:install",
    "click.testing:CliRunner.invoke", "pip._internal.cli.main:main", "rltrain.registry:load_factory",
]  # fmt: skip


@pytest.mark.parametrize("option", ["env.id", "model.kind"])
@pytest.mark.parametrize("target", FOREIGN)
def test_config_that_names_a_function_of_the_library_is_refused(target, option):
    with pytest.raises(ConfigError) as caught:
        load(None, ["env.id=CartPole-v1", f"{option}={target}"])
    module = target.partition(":")[0].split(".")[0]
    assert f'{option} = "{target}" (--set): {module!r}' in str(caught.value)
    assert "Accepted: `module:factory` of your own" in str(caught.value)
    with pytest.raises(ConfigError, match=re.escape(f"{option} = {target!r}: {module!r}")):
        load_factory(target, option)


def test_refused_module_is_not_even_imported():
    sys.modules.pop("this", None)
    with pytest.raises(ConfigError):
        load_factory("this:s", "env.id")
    assert "this" not in sys.modules


OWN = """
import functools, os, shutil, sys
from builtins import eval
from os import system
from functools import partial
from torch.hub import load
from gymnasium import make
from tests.toy_envs import Count

hidden = partial(partial(system), "true")
counts = []
make_env = partial(Count, n=3)

class Maker:
    def __call__(self, n): return Count(n)

    @classmethod
    def build(cls, n): return Count(n)

maker = Maker()
cached = functools.lru_cache(Maker.build)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "passes_on.py").write_text(OWN)
    yield "passes_on"
    sys.modules.pop("passes_on", None)


@pytest.mark.parametrize(
    "path",
    ["system", "eval", "load", "os.system", "shutil.rmtree", "sys.modules.clear", "hidden", "partial", "counts.append",
     "__loader__.set_data", "Maker.build.__globals__.clear", "make_env.func.__init__.__call__"],
)  # fmt: skip
def test_what_a_module_only_passes_on_is_refused(own_module, path):
    with pytest.raises(ConfigError, match="is not called for a configuration"):
        load_factory(f"{own_module}:{path}", "env.id")


@pytest.mark.parametrize("path", ["make", "Count", "make_env", "Maker", "Maker.build", "maker", "cached"])
def test_what_is_of_a_module_of_ones_own_or_gymnasiums_is_called(own_module, path):
    assert callable(load_factory(f"{own_module}:{path}", "env.id"))


def test_name_of_the_table_may_stand_for_anything(monkeypatch):
    monkeypatch.setitem(registry.ENVIRONMENTS, "short", "functools:partial")
    assert load_factory("functools:partial", "env.id") is functools.partial


@pytest.mark.parametrize("target", ["gymnasium:make", "ale_py.vector_env:AtariVectorEnv", "osmosis:make", "a.os:make"])
def test_packages_of_environments_and_other_names_are_accepted(target):
    assert refusal(target) is None


def test_every_package_that_rltrain_requires_is_refused_but_gymnasium():
    """Their requirements included. `google` is shared by many, `example` is a mistake of one."""
    names, distributions = ["rltrain"], set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name not in distributions:
            distributions.add(name)
            required = map(Requirement, importlib.metadata.requires(name) or [])
            names += [r.name for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    modules = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if any(re.sub(r"[-_.]+", "-", owner).lower() in distributions for owner in owners)
    }
    assert {"torch", "sympy"} <= modules
    accepted = {module for module in modules if refusal(f"{module}:f") is None}
    assert accepted <= {"gymnasium", "google", "example"}
