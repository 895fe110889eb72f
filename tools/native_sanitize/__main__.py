"""Build the C part with sanitizers; run a driver of many threads over one mapping, and layers of awkward sizes.

    python tools/native_sanitize [--rounds N]

Thread sanitizer sees data races, address and undefined-behaviour sanitizers see bad memory and bad arithmetic.
Needs gcc or clang with their sanitizer libraries. Exit status 0 when every run is clean.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DRIVERS = sorted(str(path) for path in Path(__file__).resolve().parent.glob("*.c"))
NATIVE = Path(__file__).resolve().parents[2] / "rltrain" / "native"
# Without OpenMP, of whose locks a thread sanitizer knows nothing: its pragmas are unknown then.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
# gcc says that its thread sanitizer ignores fences. All that the fences order here is atomic, so nothing is missed.
SANITIZERS = {"thread": ["-Wno-tsan"], "address,undefined": ["-fno-sanitize-recover=all"]}
LONGEST_RUN_S = 300


def build(compiler: str, sanitizer: str, flags: list[str], program: Path) -> subprocess.CompletedProcess:
    """Compile the drivers and all hand-written C files with one sanitizer."""
    sources = sorted(str(path) for path in NATIVE.glob("*.c") if path.name != "_binding.c")
    command = [
        compiler, "-std=c11", "-O1", "-g", *WARNINGS, f"-fsanitize={sanitizer}", *flags,
        f"-I{NATIVE}", *DRIVERS, *sources, "-pthread", "-lm", "-o", str(program),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run(program: Path, rounds: int) -> subprocess.CompletedProcess:
    """Run the driver. Addresses are not randomised: older thread sanitizers fail on some random layouts."""
    fixed = ["setarch", os.uname().machine, "-R"] if shutil.which("setarch") else []
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
    return subprocess.run(
        [*fixed, str(program), str(rounds)], capture_output=True, text=True, env=environment, timeout=LONGEST_RUN_S,
        check=False,
    )


def main() -> int:
    """Build and run with each sanitizer; print one verdict for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5000, help="operations of each thread (default: 5000)")
    rounds = parser.parse_args().rounds
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("native_sanitize needs gcc or clang: install one, or set CC.", file=sys.stderr)
        return 1
    num_failed = 0
    for sanitizer, flags in SANITIZERS.items():
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "driver"
            result = build(compiler, sanitizer, flags, program)
            if result.returncode == 0:
                result = run(program, rounds)
        num_failed += result.returncode != 0
        print(f"{sanitizer}: {'clean' if result.returncode == 0 else f'FAILED ({result.returncode})'}")
        print("".join(f"  {line}\n" for line in (result.stdout + result.stderr).splitlines()), end="")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
