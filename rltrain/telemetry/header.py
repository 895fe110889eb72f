"""What a run is, for those who show it: dashboard, plain lines, closing summary."""

from __future__ import annotations

from dataclasses import dataclass

from rltrain.config.schema import Config
from rltrain.fields import EnvSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.telemetry.figures import mebibytes


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


def notes_of(config: Config, spec: EnvSpec) -> tuple[str, ...]:
    """Say how a run is spread over processes, and what else its user should know of it."""
    actors, groups = int(config.actors.num_actors), config.actors.groups_per_actor
    stepping = "its own vector implementation" if spec.is_native else "single envs"
    notes = [
        f"{_counted(actors, 'actor')} x {_counted(groups, 'group')} x {_counted(config.actors.envs_per_group, 'env')} "
        f"({stepping}), {_counted(actors * groups, 'lane')}; threads: learner {config.learner.num_threads}, others 1"
    ]
    if config.algo.chosen.source == "replay":
        notes.append(_replay_note(config, ReplayLayout.of(config, spec, actors * groups)))
    if config.pipeline.schedule == "async":
        notes.append("schedule async: this run is not reproducible")
    return tuple(notes)


def _replay_note(config: Config, layout: ReplayLayout) -> str:
    replay = config.replay
    where = "in a file" if replay.in_file else "in memory"
    drawn = f"{'prioritized' if replay.prioritized else 'uniform'}, {replay.n_step}-step"
    ratio = replay.updates_per_env_step
    assert ratio != "auto", "the configuration is resolved"
    return (
        f"replay: {replay.capacity:,} transitions, {mebibytes(layout.num_bytes)} {where}, {drawn}, "
        f"{_counted(ratio, 'update')} per env step after the first {replay.learning_starts:,}"
    )


def _counted(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"
