"""Small arenas for tests, and child processes that attach to them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rltrain.fields import FragmentSchema, LeafSpec
from rltrain.shm.arena import Arena, ArenaLayout
from tests.specs import BOX, env_spec

ROOT = Path(__file__).resolve().parents[2]
LEAVES = (LeafSpec("obs.image", "box", (2, 3), "uint8"), LeafSpec("obs.vector", "box", (4,), "float32"))
ROLES = ("learner", "inference", "actor", "actor", "actor", "actor")


def layout(num_slots=6, num_actors=2, groups_per_actor=2, fragment_length=5, num_envs=3, weight_bytes=1003,
           snapshot_bytes=50) -> ArenaLayout:
    """Return the layout of a small arena with fields of several widths."""
    schema = FragmentSchema.for_env(env_spec(BOX, *LEAVES), fragment_length, num_envs)
    return ArenaLayout.plan(schema, num_slots, num_actors, groups_per_actor, weight_bytes, snapshot_bytes, ROLES)


def arena(**options) -> Arena:
    """Create a small arena."""
    return Arena.create(layout(**options))


def start_child(module: str, shared: Arena, *arguments) -> subprocess.Popen:
    """Start `python -m module FD LAYOUT ARGUMENTS...` with the arena's descriptor."""
    return subprocess.Popen(
        [sys.executable, "-m", module, str(shared.fd), json.dumps(shared.layout.to_dict()), *map(str, arguments)],
        pass_fds=[shared.fd], cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )


def attach_from_arguments() -> tuple[Arena, list[str]]:
    """In such a child: attach, and return the remaining arguments."""
    fd, layout_json, *arguments = sys.argv[1:]
    return Arena.attach(int(fd), ArenaLayout.from_dict(json.loads(layout_json))), arguments
