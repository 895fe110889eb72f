"""`rltrain doctor`: what this machine has, and what is wrong with an environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rltrain.config.schema import Config

ENV_ERROR_EXIT_CODE = 5
TORCH_TIMEOUT_S = 120


@click.command("doctor")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE",
              help="Set one option over the file's value; may be given several times.")
def command(config: Path | None, overrides: tuple[str, ...]) -> int:
    """Say what this machine has and, given CONFIG, check that its environment keeps the contract of Gymnasium.

    The environment is checked in a process of its own, so that a crash, an exit and a hang are findings, too. It
    hangs when a call takes longer than in a run: supervision.heartbeat_timeout_s for a step or a later reset,
    supervision.boot_timeout_s for what comes before.

    \b
    Example:
      rltrain doctor
      rltrain doctor configs/own_env.toml

    Exit code: 0, or 5 when the environment would spoil training.
    """
    from rltrain.errors import ConfigError

    if config is None and overrides:
        raise ConfigError("--set has nothing to change without CONFIG. Name a TOML file.")
    loaded = None
    if config is not None:
        from rltrain.config.load import load

        loaded = load(config, list(overrides))
    for name, value in _machine():
        click.echo(f"{name:<12} {value}")
    click.echo(f"{'torch':<12} ", nl=False)
    sys.stdout.flush()  # importing torch takes seconds
    click.echo(_torch())
    return 0 if loaded is None else _check_env(loaded.config)


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _machine() -> list[tuple[str, str]]:
    import platform
    import resource

    import psutil

    memory = psutil.virtual_memory()
    return [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("cores", _cores()),
        ("memory", f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"),
        ("/dev/shm", _shared_memory()),
        ("memlock", _limit(resource.RLIMIT_MEMLOCK, 2**20, "MiB of memory may be locked")),
        ("nofile", _limit(resource.RLIMIT_NOFILE, 1, "open files for each process")),
        ("compiler", _compiler()),
        ("GPU", _gpus()),
        ("nsys", _tool("nsys", "a timeline of all processes on the GPU")),
        ("ncu", _tool("ncu", "figures of single GPU kernels")),
    ]


def _cores() -> str:
    import os

    from rltrain.config.machine import affinity_cores, cgroup_cores, usable_cores

    quota = cgroup_cores()
    limit = "no cgroup quota" if quota is None else f"cgroup quota {quota:g}"
    return f"{usable_cores()} usable ({os.cpu_count()} in the machine, affinity {affinity_cores()}, {limit})"


def _shared_memory() -> str:
    path = Path("/dev/shm")
    if not path.is_dir():
        return "not there; not needed"
    return f"{shutil.disk_usage(path).total / 2**20:.0f} MiB; not used"


def _limit(number: int, unit: int, meaning: str) -> str:
    import resource

    soft, _ = resource.getrlimit(number)
    return f"{'unlimited' if soft == resource.RLIM_INFINITY else f'{soft / unit:.0f}'} {meaning}"


def _compiler() -> str:
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        return "none found; needed only to install from source: apt-get install gcc"
    said = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    return f"{said.splitlines()[0] if said else found}"


def _gpus() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # the driver's own error class exists only where the import worked
        return f"no NVIDIA GPU ({error}); training runs on the CPU"
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [
            f"{pynvml.nvmlDeviceGetName(h)}, {pynvml.nvmlDeviceGetMemoryInfo(h).total / 2**30:.0f} GiB" for h in handles
        ]
        return f"{'; '.join(names) or 'none'} (driver {driver})"
    finally:
        pynvml.nvmlShutdown()


def _tool(name: str, purpose: str) -> str:
    return f"{shutil.which(name) or 'not found'} (optional: {purpose})"


def _torch() -> str:
    """Ask a process of its own: a broken installation must not end this report."""
    question = (
        "import torch; c = torch.version.cuda; a = torch.cuda.is_available();"
        "print(torch.__version__, '(CUDA ' + c + ',' if c else '(built without CUDA,',"
        "'a device is usable)' if a else 'no device is usable)')"
    )
    try:
        answer = subprocess.run(
            [sys.executable, "-c", question], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not answer within {TORCH_TIMEOUT_S} s"
    if answer.returncode:
        return f"cannot be imported: {answer.stderr.strip().splitlines()[-1] if answer.stderr else answer.returncode}"
    return answer.stdout.strip()


def _check_env(config: Config) -> int:
    from rltrain.supervisor.env_watch import check_apart

    click.echo(f"\nEnvironment {config.env.id}")
    num = Counter[str]()
    with closing(check_apart(config)) as findings:
        for finding in findings:
            click.echo(f"  {finding.level:<8} {finding.topic}: {finding.message}")
            num[finding.level] += 1
    click.echo(f"{_many(num['error'], 'error')}, {_many(num['warning'], 'warning')}")
    return ENV_ERROR_EXIT_CODE if num["error"] else 0
