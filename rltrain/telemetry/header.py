"""What a run is, for those who show it: dashboard, plain lines, closing summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunHeader:
    """The unchanging facts of a run.

    Args:
        name: of the run.
        env_id: id or `module:factory` of the environment.
        algo: name of the algorithm.
        schedule: `sync`, `overlap` or `async`.
        run_folder: path as the user would type it.
        total_env_steps: where training ends, in env steps.
        target_return: mean return at which training ends early, or None.
        device: device of learner and inference.
        notes: one-line remarks, such as how threads are split.
        target_window: episodes in the mean return, None when not known.
        resumed_env_steps: learned from before this part of the run.
        replay_capacity: of the replay, None without one.
    """

    name: str
    env_id: str
    algo: str
    schedule: str
    run_folder: str
    total_env_steps: int
    target_return: float | None
    device: str
    notes: tuple[str, ...] = ()
    target_window: int | None = None
    resumed_env_steps: int = 0
    replay_capacity: int | None = None
