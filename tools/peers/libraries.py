"""The peers: how each is installed and driven, and the settings of which the fastest is taken. Data only.

The first setting of a list is the one that `--quick` takes. All train on 8 to 1,024 envs. What has one process for each
env is tried with few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.peers.venvs import Way

DRIVERS = Path(__file__).resolve().parent / "drivers"
ATARI = ("ale-py", "opencv-python-headless")
Options = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A library.

    Args:
        packages: distributions that carry its version; the first that is installed.
        ways: how to install it.
        driver: the script that trains with it, run by its own interpreter.
    """

    packages: tuple[str, ...]
    ways: tuple[Way, ...]
    driver: Path


@dataclass(frozen=True)
class Side:
    """One way to train, beside others.

    Args:
        label: shown.
        peer: key of `PEERS`; None for rltrain.
        settings: tried; the fastest counts. For rltrain, overrides of the configuration.
        fixed: what holds in every setting.
        package: the one of the peer's distributions that it needs; None: any.
    """

    label: str
    peer: str | None
    settings: tuple[Options, ...]
    fixed: Options = field(default_factory=dict)
    package: str | None = None


PEERS = {
    "stable-baselines3": Peer(
        ("stable-baselines3",), (Way((("torch", "stable-baselines3", *ATARI),)),), DRIVERS / "sb3_ppo.py"
    ),
    "sample-factory": Peer(
        ("sample-factory",),
        (Way((("torch", "sample-factory", *ATARI),), only_torch=True),),
        DRIVERS / "sample_factory_appo.py",
    ),
    "pufferlib": Peer(
        ("pufferlib", "pufferlib-core"),
        (
            Way((
                ("torch", "numpy<2", "setuptools<80", "wheel", "cython"),
                ("--no-build-isolation", "pufferlib==3.0.0", *ATARI),
            ), only_torch=True),
            Way((  # its wheel asks for another torch, and for CUDA
                ("torch", "numpy", "gymnasium", "psutil", "rich", "rich-argparse", "pyro-ppl", "nvidia-ml-py", *ATARI),
                ("setuptools", "wheel", "ninja"),
                ("--no-deps", "--no-build-isolation", "--no-binary", "pufferlib-core", "pufferlib-core"),
            ), environment=(("PUFFERLIB_DISABLE_CUDA", "1"),)),
        ),
        DRIVERS / "pufferlib_ppo.py",
    ),
    "rllib": Peer(
        ("ray",), (Way((("torch", "ray[rllib]", *ATARI),), only_torch=True),), DRIVERS / "rllib_ppo.py"
    ),
}  # fmt: skip


def combined(**values: Iterable[Any]) -> tuple[Options, ...]:
    """Return every combination of the values, the first of each first."""
    found: list[Options] = [{}]
    for name, choices in values.items():
        found = [{**options, name: choice} for options in found for choice in dict.fromkeys(choices)]
    return tuple(found)


def written(options: Options) -> str:
    """Return a setting as a row of a table has it."""
    return ", ".join(
        f"{name.rpartition('.')[2]} {value if not isinstance(value, bool) else str(value).lower()}"
        for name, value in options.items()
    )


def cartpole_sides(cores: int) -> list[Side]:
    """Return who steps CartPole and learns from it, one pass over the data."""
    threads = (1, cores)
    gym = "its Gymnasium envs"
    native = combined(**{
        "actors.envs_per_group": (2048, 512), "pipeline.inference": ("local", "server"),
        "learner.num_threads": threads[::-1],
    })  # two groups: 4,096 and 1,024 envs
    single = combined(**{
        "actors.envs_per_group": (256, 64), "pipeline.inference": ("local", "server"),
        "actors.num_actors": threads[::-1],
    })
    return [
        Side("rltrain, native vector env", None, native, {"env.vectorization": "native"}),
        Side("rltrain, single envs", None, single, {"env.vectorization": "single"}),
        Side(f"stable-baselines3, {gym}", "stable-baselines3", (
            *combined(vector=("dummy",), num_envs=(256, 64, 8, 1024), threads=threads),
            *combined(vector=("subproc",), num_envs=(8, 32), threads=(1,)),
        )),
        Side(f"sample-factory, {gym}", "sample-factory", (
            *combined(mode=("async", "sync"), num_envs=(256, 64, 1024), workers=(cores,)),
            *combined(mode=("serial",), num_envs=(256, 1024), workers=(1,)),
        )),
        Side(f"pufferlib, {gym}", "pufferlib", (
            *combined(vector=("serial",), num_envs=(256, 1024, 64), workers=(1,), threads=threads),
            *combined(vector=("processes",), num_envs=(256, 1024, 64), workers=(cores,), threads=(1,)),
        )),
        Side("pufferlib, its CartPole in C", "pufferlib", combined(
            vector=("native",), num_envs=(1024, 256, 64), workers=(1,), threads=threads,
        ), package="pufferlib"),
        Side(f"rllib, {gym}", "rllib", (
            *combined(runners=(cores,), num_envs=(256, 64, 1024), threads=(1,)),
            *combined(runners=(0,), num_envs=(256, 64), threads=threads),
        )),
    ]  # fmt: skip


def pong_sides(cores: int) -> list[Side]:
    """Return who plays Pong and learns from it, one pass over the data."""
    threads = (cores, 1)
    own = combined(**{"actors.envs_per_group": (8, 16, 32)})
    return [
        Side("rltrain, float32", None, own, {"learner.precision": "float32"}),
        Side("rltrain, bfloat16", None, own, {"learner.precision": "bfloat16"}),
        Side("rltrain, float32, single envs", None, own, {"env.vectorization": "single"}),
        Side("stable-baselines3", "stable-baselines3", combined(
            vector=("subproc", "dummy"), num_envs=(16, 8), threads=threads,
        )),
        Side("sample-factory", "sample-factory", combined(
            mode=("async", "sync"), num_envs=(16, 8), workers=(cores,),
        )),
        Side("pufferlib", "pufferlib", (
            *combined(vector=("processes",), num_envs=(16, 8), workers=(cores,), threads=threads),
            *combined(vector=("serial",), num_envs=(16,), workers=(1,), threads=threads),
        )),
        Side("rllib", "rllib", (
            *combined(runners=(cores,), num_envs=(16, 8), threads=threads),
            *combined(runners=(0,), num_envs=(16,), threads=(cores,)),
        )),
    ]  # fmt: skip


def tuned_sides(cores: int) -> list[Side]:
    """Return who learns CartPole with the best hyperparameters that are published for it; one setting each."""
    return [
        Side("rltrain, configs/cartpole.toml", None, ({},)),
        Side("stable-baselines3, RL Zoo's", "stable-baselines3", (
            {"vector": "dummy", "num_envs": 8, "threads": 1},
        )),
        Side("sample-factory, its example's", "sample-factory", (
            {"mode": "async", "num_envs": 20 * cores, "workers": cores},
        )),
        Side("pufferlib, rltrain's where it has them", "pufferlib", (
            {"vector": "serial", "num_envs": 32, "workers": 1, "threads": 1},
        )),
        Side("rllib, its tuned example's", "rllib", ({"runners": cores, "num_envs": cores, "threads": 1},)),
    ]  # fmt: skip
