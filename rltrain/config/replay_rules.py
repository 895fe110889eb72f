"""Rules of the section `replay` against the rest, for algorithms that learn from it and for those that do not."""

from __future__ import annotations

from collections.abc import Callable

from rltrain.config.schema import Config, ReplaySection

PRIORITY_OPTIONS = ("priority_alpha", "priority_beta", "priority_beta_end", "priority_eps", "normalize_weights")


def check_replay(config: Config, say: Callable[[str], str]) -> list[str]:
    """Return one message for each broken rule; none for an algorithm without replay."""
    replay = config.replay
    if config.algo.chosen.source != "replay":
        return []
    problems = []
    for name in ("batch_size", "learning_starts"):
        if getattr(replay, name) > replay.capacity:
            problems.append(
                f"{say(f'replay.{name}')} is more than replay.capacity = {replay.capacity} ever holds. "
                f"Accepted: at most {replay.capacity}, or a larger replay."
            )
    if replay.learning_starts >= config.run.total_env_steps:
        problems.append(
            f"{say('replay.learning_starts')} leaves nothing to learn from: run.total_env_steps = "
            f"{config.run.total_env_steps} come in all. Accepted: fewer than that."
        )
    if config.pipeline.when_full == "overwrite_oldest":
        problems.append(
            f"{say('pipeline.when_full')} throws away what the replay keeps for much longer. "
            'Accepted with a replay: "block".'
        )
    if config.env.normalize_reward:
        problems.append(
            f'{say("env.normalize_reward")} does not go with algo.name = "{config.algo.name}", which learns from '
            "stored rewards: they would have been scaled by what was known when each was stored. Accepted: false, with "
            "env.reward_clip or a wrapper that scales rewards by a constant where they are large."
        )
    return problems


def unused_options(config: Config) -> list[tuple[bool, list[str], str]]:
    """Return groups of options that have no effect: whether so, their paths, and why."""
    name, is_replayed = config.algo.name, config.algo.chosen.source == "replay"
    return [
        (
            not is_replayed,
            [f"replay.{option}" for option in ReplaySection.model_fields],
            f'algo.name = "{name}" learns from each batch when it comes',
        ),
        (is_replayed, ["pipeline.max_policy_lag"], f'algo.name = "{name}" learns from transitions of any age'),
        (
            not config.replay.prioritized,
            [f"replay.{option}" for option in PRIORITY_OPTIONS],
            "replay.prioritized is false",
        ),
        (
            config.pipeline.schedule != "async",
            ["replay.ahead_env_steps"],
            f'pipeline.schedule = "{config.pipeline.schedule}" makes the updates of one version before the next',
        ),
    ]
