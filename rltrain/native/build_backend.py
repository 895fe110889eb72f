"""Build backend: setuptools, plus the generated C source that connects Python to the C files of this folder.

`pip` calls the functions that PEP 517 and PEP 660 name. Without a compiler each says so in one sentence before
anything else happens, instead of a page of compiler output.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import build_meta

FOLDER = Path(__file__).resolve().parent
GENERATED = FOLDER / "_binding.c"
MODULE = "rltrain.native._binding"

get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def build_sdist(sdist_directory: str, config_settings: dict | None = None) -> str:
    """Build the source archive; needs no compiler."""
    _generate()
    return build_meta.build_sdist(sdist_directory, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel for this platform and any Python from 3.11 on."""
    _prepare()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None
) -> str:
    """Build in place, for `pip install -e .`."""
    _prepare()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _prepare() -> None:
    """Stop in words where nothing can be compiled; else write the C source."""
    check_platform()
    check_compiler()
    check_headers()
    _generate()


def check_platform(platform: str = sys.platform) -> None:
    """Stop unless this is Linux.

    Args:
        platform: as `sys.platform`.

    Raises:
        SystemExit: on any other system.
    """
    if platform != "linux":
        raise SystemExit(f"rltrain needs Linux (futex, memfd), but this is {platform}: use Linux or WSL 2.")


def check_compiler(command: str | None = None) -> None:
    """Stop unless there is a C compiler.

    Args:
        command: the compiler with its flags; by default `$CC`, else the one this Python was built with.

    Raises:
        SystemExit: none is on the PATH.
    """
    command = command or os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    program = shlex.split(command)[0]
    if shutil.which(program) is None:
        raise SystemExit(
            f"rltrain has a part in C and needs a C compiler, but {program!r} was not found: install gcc "
            "(Debian and Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc), or set CC to a C11 compiler "
            "with OpenMP."
        )


def check_headers(folder: str | None = None) -> None:
    """Stop unless Python's C headers are there.

    Args:
        folder: where to look; by default where this Python has them.

    Raises:
        SystemExit: they are not.
    """
    folder = folder or sysconfig.get_path("include")
    if not Path(folder, "Python.h").is_file():
        raise SystemExit(
            f"rltrain has a part in C and needs Python's C headers, but {folder}/Python.h was not found: install them "
            "(Debian and Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)."
        )


def _generate() -> None:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef((FOLDER / "api.h").read_text(encoding="utf-8"))
    ffi.set_source(MODULE, '#include "protocol.h"', py_limited_api=True)
    ffi.emit_c_code(str(GENERATED))
