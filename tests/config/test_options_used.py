"""An option must be read somewhere outside the configuration's own code; a setting that nobody reads lies."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from rltrain.config.options import leaves

PACKAGE = Path(__file__).parents[2] / "rltrain"


@cache
def names_read() -> frozenset[str]:
    """Attributes and text keys in the package's code, `config/` and `cli/` apart (they only pass options on)."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ("config", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add(node.slice.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return frozenset(name for name in found if isinstance(name, str))


@pytest.mark.parametrize("path", [path for path, _ in leaves()])
def test_option_is_read_by_the_code(path):
    assert path.rsplit(".", 1)[-1] in names_read(), f"no file of rltrain/ reads {path}"
