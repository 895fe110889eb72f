"""The build backend's first words to somebody without a compiler, and what the build leaves out of Python's ABI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltrain.native import _binding

FOLDER = Path(_binding.__file__).parent


def run_backend(code: str, **environment) -> subprocess.CompletedProcess:
    """Run code against the backend as pip does: the folder on the path, no rltrain."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CC", "PYTHONPATH", "PYTHONWARNINGS")}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import build_backend; {code}"],
        env={**kept, **environment}, cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )


@pytest.mark.parametrize("hook", ["build_wheel", "build_editable"])
def test_build_without_compiler_fails_with_one_sentence(hook, tmp_path):
    result = run_backend(f"build_backend.{hook}({str(tmp_path)!r})", PATH="")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "needs a C compiler" in result.stderr
    assert "apt install gcc" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_build_compiler_named_by_cc_is_looked_for():
    result = run_backend("build_backend.check_compiler()", CC="absent-compiler -O2")
    assert result.returncode == 1
    assert "'absent-compiler'" in result.stderr


def test_build_without_headers_fails_with_one_sentence(tmp_path):
    result = run_backend(f"build_backend.check_headers({str(tmp_path)!r})")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "apt install python3-dev" in result.stderr


def test_build_on_this_machine_passes_the_checks():
    checks = "; ".join(f"build_backend.check_{what}()" for what in ("platform", "compiler", "headers"))
    assert run_backend(checks).returncode == 0


def test_build_other_system_fails_with_one_sentence():
    result = run_backend("build_backend.check_platform('darwin')")
    assert result.returncode == 1
    assert result.stderr == "rltrain needs Linux (futex, memfd), but this is darwin: use Linux or WSL 2.\n"


def test_binding_is_built_for_the_stable_abi():
    assert Path(_binding.__file__).name == "_binding.abi3.so"
