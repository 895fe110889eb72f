"""What a child's end means to the user: the error of the run, with the child's own words and its last log lines.

Owns: nothing. Called by boot and by the supervisor once they have heard of an end.
"""

from __future__ import annotations

from rltrain.errors import (
    BootError,
    CheckpointError,
    ConfigError,
    EnvContractError,
    RltrainError,
    TrainingError,
    WorkerDied,
)
from rltrain.supervisor.launcher import Child

TAIL_LINES = 20
_TOLD_AS_THEY_ARE = {kind.__name__: kind for kind in (ConfigError, CheckpointError, EnvContractError, TrainingError)}


def boot_error(child: Child) -> RltrainError:
    """Return the error of a child that ended or failed before it was ready."""
    error = child.error
    if error is None:
        return BootError(f"{child.name} {child.describe_end()} while starting.\n{log_tail(child)}")
    if error["kind"] in _TOLD_AS_THEY_ARE:
        return _TOLD_AS_THEY_ARE[error["kind"]](error["message"])
    return BootError(f"{child.name} failed while starting:\n{error['traceback']}")


def told_error(child: Child) -> RltrainError | None:
    """Return the error that a child reported, if it is one that a restart would meet again; None otherwise."""
    if child.error and child.error["kind"] in _TOLD_AS_THEY_ARE:
        return _TOLD_AS_THEY_ARE[child.error["kind"]](f"{child.name}: {child.error['message']}")
    return None


def death_error(child: Child, reason: str = "") -> RltrainError:
    """Return the error of a child whose end ends the run; `reason`, a sentence, says why it is not restarted."""
    told = told_error(child)
    if told is not None:
        return told
    lines = [f"{child.name} (pid {child.pid}) {child.describe_end()}.{' ' + reason if reason else ''}"]
    lines += [child.error["traceback"] if child.error else log_tail(child)]
    lines.append(f"Its log: {child.log.path}")
    return WorkerDied("\n".join(lines))


def log_tail(child: Child) -> str:
    """Return the last lines of a child's log."""
    return "\n".join(child.log.tail(TAIL_LINES))
