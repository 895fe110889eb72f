"""Every error that rltrain raises on purpose, each with the exit code the command line ends with.

    RltrainError                    1
    ├── ConfigError                 2   the configuration or the command line is wrong; nothing was created
    ├── InternalError               1   the supervisor itself failed: a fault of rltrain
    ├── BootError                   3   a process failed while starting; not restarted
    ├── WorkerDied                  4   a process died more often than the limit allows
    ├── TrainingError               5   training diverged, or an environment sent invalid data
    │   ├── EnvContractError        5   an environment broke its contract; names env, step and value
    │   └── CheckpointError         5   a checkpoint is missing, damaged or does not fit
    └── Interrupted                 130 by Ctrl-C; 143 SIGTERM, 129 SIGHUP; 131 SIGQUIT, without a checkpoint
        ShutdownRequested           internal: the stop word was set while a worker waited

Message shape: what failed; the value with its full option path; what is accepted; what to do next.
"""

from __future__ import annotations


class RltrainError(Exception):
    """Base of all errors that are reported as one message without a traceback."""

    exit_code = 1


class ConfigError(RltrainError):
    """One or several problems in a configuration, shown together.

    Args:
        problems: one message each, in the shape given at the top of this file.
    """

    exit_code = 2

    def __init__(self, problems: str | list[str]):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class InternalError(RltrainError):
    """The supervisor failed in a way that nobody foresaw; the traceback is part of the message."""


class BootError(RltrainError):
    """A process failed before it was ready; its own traceback is part of the message.

    Args:
        message: what to say.
        died: name of the process where it ended without a word, and may do better another time.
    """

    exit_code = 3

    def __init__(self, message: str, died: str | None = None):
        super().__init__(message)
        self.died = died


class WorkerDied(RltrainError):
    """A process died more often than `supervision.max_restarts` allows."""

    exit_code = 4


class TrainingError(RltrainError):
    """Training cannot go on: it diverged, or its data is invalid."""

    exit_code = 5


class EnvContractError(TrainingError):
    """An environment returned something its declared spaces or the Gymnasium API do not allow."""


class CheckpointError(TrainingError):
    """A checkpoint is missing, damaged, or belongs to another environment or model."""


class Interrupted(RltrainError):
    """The run was stopped by a signal; without a checkpoint where the message says so."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


class ShutdownRequested(Exception):
    """The supervisor set the stop word while this worker waited; the worker leaves its loop."""
