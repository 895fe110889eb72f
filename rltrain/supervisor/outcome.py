"""How a run ended: the state that its summary tells and the exit code of the command.

Owns: nothing. Called by the supervisor when nothing is left to wait for.
"""

from __future__ import annotations

from typing import Any

from rltrain.errors import Interrupted, RltrainError
from rltrain.supervisor.deaths import death_error
from rltrain.supervisor.launcher import Child
from rltrain.supervisor.stop_signals import StopSignals


def end_state(failure: RltrainError | None, reason: str) -> str:
    """Return `failed`, `stopped`, or the learner's own `reason`."""
    if failure is None:
        return reason
    return "stopped" if isinstance(failure, Interrupted) else "failed"


def exit_code(failure: RltrainError | None, done: dict[str, Any] | None, signals: StopSignals) -> int:
    """Return the exit code; `done` is what the learner said at its end, None where it could not."""
    if failure is not None:
        return failure.exit_code
    if done is not None and done["reason"] == "stopped" and signals:
        return 128 + signals.first
    return 0


def stopped_without_learner(learner: Child, signals: StopSignals) -> Interrupted:
    """Return the error of a stop that was asked for when nobody could write a checkpoint any more."""
    return Interrupted(
        f"{signals.names}: stopped without a checkpoint, as the learner had died: what it learned since the last one "
        f"is lost.\n{death_error(learner)}", signals.first,
    )  # fmt: skip


def summary_of_failed_boot(error: RltrainError, resumed: tuple[int, int] | None) -> dict[str, Any]:
    """Return the summary of a run that did not begin; `resumed` is (env steps, updates) of its checkpoint."""
    env_steps = resumed[0] if resumed else 0
    return {"state": "failed", "exit_code": error.exit_code, "env_steps": env_steps, "error": str(error)}
