"""What a child's end means to the user: the error of the run, with the child's own words and its last log lines.

Owns: nothing. Called by boot and by the supervisor once they have heard of an end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrain.errors import (
    BootError,
    CheckpointError,
    ConfigError,
    EnvContractError,
    RltrainError,
    TrainingError,
    WorkerDied,
)
from rltrain.shm.counters import CounterRow
from rltrain.supervisor.launcher import Child
from rltrain.supervisor.run_list import checkpointed, newest_checkpoint

SHOWN_LINES = 20
_BY_NAME = {kind.__name__: kind for kind in (CheckpointError, EnvContractError)}
_BY_EXIT_CODE: dict[int, type[RltrainError]] = {kind.exit_code: kind for kind in (ConfigError, TrainingError)}


def boot_error(child: Child, has_booted: bool) -> RltrainError:
    """Return the error of a child that ended or failed before it was ready.

    Args:
        child: which did.
        has_booted: whether the run had booted before: what could start once may start again, so that an exception while
            starting is a death like another, and not what every further attempt would meet, too.
    """
    error = child.error
    if error is None:
        text = f"{child.name} {child.describe_end()}, while starting.{child.hint()}\n{log_tail(child)}"
        return BootError(text, died=child.name)
    kind = _told_kind(child)
    if kind is not None:
        return kind(error["message"])
    failed = f"{child.name} failed while starting"
    if has_booted:
        return BootError(f"{failed}: {why_it_ended(child)}.\n{error['traceback']}", died=child.name)
    return BootError(f"{failed}:\n{error['traceback']}")


def told_error(child: Child) -> RltrainError | None:
    """Return the error that a child reported, if it is one that a restart would meet again; None otherwise."""
    kind = _told_kind(child)
    return None if kind is None or child.error is None else kind(f"{child.name}: {child.error['message']}")


def _told_kind(child: Child) -> type[RltrainError] | None:
    """The kind of error that a child reported, None for one that says nothing to the user but its traceback."""
    if child.error is None:
        return None
    return _BY_NAME.get(child.error["kind"]) or _BY_EXIT_CODE.get(child.error["exit_code"])


def why_it_ended(child: Child) -> str:
    """Say in one line why a child ended, and of an exception which env raised it; it may come without a message."""
    if child.error is None:
        return child.describe_end()
    told = ": ".join([child.error["kind"], *child.error["message"].splitlines()[:1]])
    return " | ".join([told, *child.error["notes"]]).rstrip(".")


def consequence(role: str, checkpoints: Path, env_steps: int) -> str:
    """Say what follows the death of a process of this role, if anything does.

    Args:
        role: of the process.
        checkpoints: the run's checkpoint folder.
        env_steps: that were learned from.
    """
    if role != "learner":
        return "Restarting it; the requests wait for it" if role == "inference" else "Restarting it"
    saved, _ = checkpointed(checkpoints.parent)
    if saved is None:
        return f"There is no checkpoint yet: {env_steps:,} env steps are lost, and every process begins again"
    lost = f"; {max(0, env_steps - saved):,} env steps are lost"
    return f"Every process goes back to the checkpoint of {saved:,} env steps{lost}"


def death_error(child: Child, place: str = "", reason: str = "") -> RltrainError:
    """Return the error of a child whose end ends the run.

    Args:
        child: which ended.
        place: where it was, words after a space.
        reason: why it is not restarted, a sentence.
    """
    worded = told_error(child)
    if worded is not None:
        return worded
    end = f"{child.name} (pid {child.pid}) {child.describe_end()}{place}.{child.hint()}"
    told = child.error["traceback"] if child.error else log_tail(child)
    lines = [f"{end} {reason}" if reason else end, told, f"Its log: {child.log.path}"]
    return WorkerDied("\n".join(line for line in lines if line))


def last_known(learner: CounterRow, checkpoints: Path) -> dict[str, Any]:
    """Return what a learner that can no longer say it had come to, in the words it would have used.

    Args:
        learner: its counter row.
        checkpoints: the run's checkpoint folder.
    """
    return {
        "reason": "failed",
        "env_steps": int(learner.get("env_steps")),
        "updates": int(learner.get("updates")),
        "return_mean": learner.get("return_mean"),
        "episode_length_mean_steps": learner.get("length_mean"),
        "checkpoint": newest_checkpoint(checkpoints.parent),
    }


def log_tail(child: Child) -> str:
    """Return the last lines of a child's log."""
    return "\n".join(child.log.tail(SHOWN_LINES))
