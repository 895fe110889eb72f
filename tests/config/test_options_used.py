"""An option must be read somewhere outside the configuration's own code; a setting that nobody reads lies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rltrain.config.algorithms import (
    ActorCriticReplayOptions,
    AlgoConfig,
    AlgoSection,
    PolicyGradientOptions,
)
from rltrain.config.options import leaves
from rltrain.config.schema import Config

PACKAGE = Path(__file__).parents[2] / "rltrain"
SECTION_OF_TYPE = {
    field.annotation.__name__: name
    for section in (Config, AlgoSection)
    for name, field in section.model_fields.items()
    if isinstance(field.annotation, type)
}
SHARED = (AlgoConfig, PolicyGradientOptions, ActorCriticReplayOptions)
"""Options of several algorithms: read for one, read for all, as `config.algo.chosen` or as one of these types."""
SECTION_OF_TYPE |= {shared.__name__: "chosen" for shared in SHARED}
HANDED_ON = {
    "algo.dqn.dueling": "dueling", "algo.dqn.epsilon_ladder": "ladder_envs",
    "algo.td3.exploration_noise": "exploration_noise",
}  # fmt: skip
"""What `Config.model_settings` hands on to the model with its own section, and under which name."""


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pair each name of an assignment with what it gets."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def last_word(node: ast.expr) -> str:
    """`c` of `a.b.c`, of `c` and of `a["c"]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def section_of(annotation: ast.expr, name: str) -> str:
    """The section that an argument of this type is; of several possible ones, what they have in common."""
    if isinstance(annotation, ast.BinOp):
        known = [section for kind in ast.walk(annotation) if (section := SECTION_OF_TYPE.get(last_word(kind)))]
        return "chosen" if known else name
    return SECTION_OF_TYPE.get(last_word(annotation), name)


def reads(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (section, option) of everything that a file reads, by whatever name it holds the section."""
    holders = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target, value in (pair for t in node.targets for pair in pairs(t, node.value)):
                holders[last_word(target)] = last_word(value)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            holders[node.arg] = section_of(node.annotation, node.arg)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            word = last_word(node.value)
            yield word, node.attr
            yield holders.get(word, word), node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            word = last_word(node.value)
            yield word, node.slice.value
            yield holders.get(word, word), node.slice.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield last_word(node.func.value), argument.value


@cache
def read_options() -> frozenset[tuple[str, str]]:
    """Everything read in the package's code, `config/` and `cli/` apart (they only pass options on)."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("config", "cli"):
            found |= set(reads(ast.parse(path.read_text())))
    return frozenset(found)


@pytest.mark.parametrize("path", [path for path, _ in leaves()])
def test_option_is_read_by_the_code(path):
    section, option = path.split(".")[-2:]
    ways = {(section, option)}
    if path.startswith("algo.") and any(option in shared.model_fields for shared in SHARED):
        ways.add(("chosen", option))
    if path in HANDED_ON:
        ways = {("model", HANDED_ON[path])}
    assert ways & read_options(), f"no file of rltrain/ reads {path}"
