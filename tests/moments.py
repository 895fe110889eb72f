"""Moments in a run's work at which a process ends itself, and the ways in which it does.

`env.id = "tests.rude_envs:AtMoment"` with `env.kwargs = {moment, once, cause}`, `model.kind =
"tests.rude_models:make_model"` with the same in `model.kwargs`: between them they are in every process of a run. The
moment is one entry of `MOMENTS`; `none` never comes. Loads no torch, as actors do not.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEFORE, AFTER = False, True


@dataclass(frozen=True)
class Moment:
    """One call of a method in one process.

    Args:
        process: name of the process that dies.
        place: `module:Class.method` or `module:function`; nothing for the moment in which env or network is built.
        is_after: right after the call, else right before it.
        call: at which call, counted from 1, once the process has begun to work.
    """

    process: str
    place: str
    is_after: bool
    call: int = 20


RING, STORE = "rltrain.shm.ring:TrajectoryRing", "rltrain.workers.checkpoints"
MOMENTS = {
    "actor: slot claimed": Moment("actor-0", f"{RING}.claim", AFTER),
    "actor: fragment half full": Moment("actor-0", "tests.toy_envs:Count.step", BEFORE, 500),
    "actor: before publication": Moment("actor-0", f"{RING}.publish", BEFORE),
    "actor: after publication": Moment("actor-0", f"{RING}.publish", AFTER),
    "actor: before its envs' states": Moment("actor-0", "rltrain.shm.snapshots:SnapshotArea.write", BEFORE, 2),
    "actor: after its envs' states": Moment("actor-0", "rltrain.shm.snapshots:SnapshotArea.write", AFTER, 1),
    "actor: before a forward of its own": Moment("actor-0", "tests.rude_models:Small.policy", BEFORE, 300),
    "server: before the gather": Moment("inference", "rltrain.shm.row_copies:RowCopies.gather_step", BEFORE, 300),
    "server: before the forward": Moment("inference", "rltrain.models.actor_critic:ActorCritic.policy", BEFORE, 300),
    "server: before the scatter": Moment("inference", "rltrain.shm.row_copies:RowCopies.scatter_step", BEFORE, 300),
    "server: before the reply": Moment("inference", "rltrain.shm.mailbox:Mailboxes.reply", BEFORE, 300),
    "server: after the reply": Moment("inference", "rltrain.shm.mailbox:Mailboxes.reply", AFTER, 300),
    "server: weights read": Moment("inference", "rltrain.shm.weights:WeightBoard.read", AFTER),
    "learner: fragment taken": Moment("learner", f"{RING}.take", AFTER, 40),
    "learner: before the release": Moment("learner", f"{RING}.release", BEFORE, 40),
    "learner: in the update": Moment("learner", "rltrain.algos.adam:FlatAdam.step", BEFORE, 25),
    "learner: before publication": Moment("learner", "rltrain.shm.weights:WeightBoard.publish", BEFORE),
    "learner: after publication": Moment("learner", "rltrain.shm.weights:WeightBoard.publish", AFTER),
    "learner: before a checkpoint": Moment("learner", f"{STORE}:_write_durably", BEFORE, 2),
    "learner: before the rename": Moment("learner", "os:replace", BEFORE, 2),
    "learner: after the rename": Moment("learner", "os:replace", AFTER, 2),
    "learner: built": Moment("learner", "", BEFORE),
    "server: built": Moment("inference", "", BEFORE),
    "actor: built": Moment("actor-0", "", BEFORE),
    "evaluator: in an episode": Moment("evaluator", "tests.toy_envs:Count.step", BEFORE, 50),
    "learner: before old ones go": Moment("learner", f"{STORE}:CheckpointStore._remove_old", BEFORE, 2),
}


def arm(moment: str, once: str, cause: str) -> None:
    """Make this process die at the moment if it is the one, unless the file `once` says that it has."""
    chosen = MOMENTS.get(moment)
    name = Path("/proc/self/comm").read_text().strip().removeprefix("rl:")
    if chosen is None or chosen.process != name or os.path.exists(once):
        return
    if not chosen.place:
        return die(once, cause)
    module_name, _, path = chosen.place.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    method, calls = getattr(owner, last), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = method(*args, **kwargs) if chosen.is_after or calls != chosen.call else None
        if calls == chosen.call:
            die(once, cause)
        return answer

    setattr(owner, last, wrapped)


def die(once: str, cause: str) -> None:
    """End this process, the first time; or hang."""
    try:
        with open(once, "x"):
            pass
    except FileExistsError:
        return
    CAUSES[cause]()


def _raise() -> None:
    raise ValueError("boom")


CAUSES = {
    "raise": _raise,
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "hang": lambda: threading.Event().wait(),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
