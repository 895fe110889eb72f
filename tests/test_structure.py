"""The rules of `rltrain/README.md` on who may import what, and what every file must have."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rltrain.config.load import load
from rltrain.telemetry.metrics import METRICS, metric_for

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rltrain"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    {"errors", "fields", "telemetry.metrics"}, {"registry", "host_copies"}, {"config"}, {"native"}, {"shm"},
    {"envs", "models", "algos", "replay"}, {"inference"}, {"workers"}, {"telemetry"}, {"supervisor"}, {"bench"},
    {"cli"}, {"__main__"},
)
CONFINED = {
    "gymnasium": {"envs", "bench.replay_peers"}, "click": {"cli"}, "rich": {"cli", "telemetry.dashboard"},
    "cffi": {"native"}, "tensorboard": {"telemetry.tensorboard"}, "matplotlib": {"bench.page"},
    "torch": {
        "host_copies", "models", "algos", "inference", "workers", "replay.fragments", "bench.replay_peers",
        "bench.conventional", "bench.serving", "bench.stages",
    },
}
MAX_LINES = 320


MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def imports(path: Path) -> set[str]:
    """Absolute names of all that a file imports, inside functions too; not under `if TYPE_CHECKING`."""
    names, nodes = set(), [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else str(node.module) for name in whole}
    return names


IMPORTS = {module: imports(path) for module, path in MODULES.items()}


def place_of(module: str) -> tuple[int, str]:
    """The layer and the part of the package that a module belongs to."""
    inner = module.removeprefix("rltrain.")
    return next((i, part) for part in (inner, inner.split(".")[0]) for i, layer in enumerate(LAYERS) if part in layer)


def test_imports_go_down():
    pairs = {(module, name) for module in MODULES for name in IMPORTS[module] if name.startswith("rltrain.")}
    between = {(module, name) for module, name in pairs if place_of(module) != place_of(name)}
    assert {(module, name) for module, name in between if place_of(name)[0] >= place_of(module)[0]} == set()


@pytest.mark.parametrize("package", CONFINED)
def test_package_is_imported_in_its_place_only(package):
    users = {module for module, names in IMPORTS.items() if any(f"{name}.".startswith(f"{package}.") for name in names)}
    homes = tuple(f"rltrain.{home}." for home in CONFINED[package])
    assert users, "a rule for a package that nothing uses"
    assert {module for module in users if not f"{module}.".startswith(homes)} == set()


def test_actor_and_all_it_reaches_import_no_torch():
    reached, to_visit = set(), ["rltrain.workers.child", "rltrain.workers.actor"]
    while to_visit:
        module = to_visit.pop()
        if module in reached or module == "rltrain.inference.local_backend":
            continue
        reached.add(module)
        to_visit += [name for name in {*IMPORTS[module], module.rpartition(".")[0]} if name in MODULES]
    assert {module for module in reached if any(name.split(".")[0] == "torch" for name in IMPORTS[module])} == set()
    assert "rltrain.shm.ring" in reached


def test_cli_import_is_light():
    heavy = {"torch", "gymnasium", "rich", "pydantic", "numpy", "tensorboard"}
    code = f"import sys, rltrain.cli; print({heavy!r} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60, cwd=ROOT) == "set()\n"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_config_file_loads(path):
    assert load(path).config.run.name


def test_metric_names_in_the_code_are_the_names_of_the_table():
    groups = "|".join(sorted({metric.name.split("/")[0] for metric in METRICS}))
    literal = re.compile(rf'"((?:{groups})/[a-z0-9_]+)"')
    texts = [path.read_text() for path in FILES if path.name != "metrics.py"]
    written = {name for text in texts for name in literal.findall(text)}
    known = {name for name in written for kind in ("scalar", "histogram", "text") if metric_for(name, kind)}
    assert written - known == set()
    # The supervisor's curves and the algorithms' losses are made in loops; tests/telemetry/test_metrics.py has them.
    whole = {m.name for m in METRICS if (m.writer == "learner" and m.name.startswith("rollout/")) or "final/" in m.name}
    assert whole - written == set()


def test_every_file_is_short_and_named_for_what_it_holds():
    files = [*FILES, *ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/**/*.py"), *PACKAGE.rglob("*.[ch]")]
    assert [path for path in files if path.stem in {"utils", "util", "common", "misc", "helpers", "base"}] == []
    own = [path for path in files if path.name != "_binding.c"]
    assert {path: lines for path in own if (lines := path.read_text().count("\n")) > MAX_LINES} == {}


def test_every_module_says_what_it_is_and_in_shm_and_workers_what_it_owns():
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in FILES}
    assert [path for path, text in docstrings.items() if not text] == []
    shared = {path: text for path, text in docstrings.items() if path.parent.name in ("shm", "workers")}
    assert [path for path, text in shared.items() if "Owns:" not in text and path.stem != "__init__"] == []
