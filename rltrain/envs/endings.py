"""Findings about how episodes end: who resets an env, and what cuts an episode short."""

from __future__ import annotations

from rltrain.envs.group import EnvGroup
from rltrain.envs.native import NativeGroup
from rltrain.envs.probe import Ends
from rltrain.envs.report import Finding


def autoreset(group: EnvGroup) -> Finding:
    """Say how the envs of a group come to be reset."""
    if not isinstance(group, NativeGroup):
        return Finding("ok", "autoreset", "single environments are reset in the row after an end (NEXT_STEP)")
    if group.is_adapted:
        return Finding("ok", "autoreset", "the vector environment is in DISABLED mode and is adapted to NEXT_STEP")
    return Finding("ok", "autoreset", "the vector environment is in NEXT_STEP mode, as training needs it")


def truncation(max_episode_steps: int | None, ends: Ends) -> Finding:
    """Say whether episodes were cut short, and what training makes of it.

    Args:
        max_episode_steps: the limit in force that rltrain knows of, or None.
        ends: how the episodes seen ended.
    """
    if ends.truncated and ends.both == ends.truncated:
        return Finding(
            "warning", "truncation", f"All {ends.both} truncated episodes were terminated in the same step, which "
            "counts as a termination: no value beyond. If a limit cut them, return `terminated` False.",
        )  # fmt: skip
    if ends.truncated:
        num = ends.terminated + ends.truncated - ends.both
        return Finding(
            "ok", "truncation", f"{ends.truncated} of {num} episodes were cut short; the value of their last "
            "observation stands for what could have followed",
        )  # fmt: skip
    if max_episode_steps is not None:
        return Finding("ok", "truncation", f"none seen; the limit of {max_episode_steps} steps truncates")
    if ends.terminated:
        return Finding("ok", "truncation", f"none: all {ends.terminated} episodes terminated by themselves")
    return Finding(
        "warning", "truncation", "No episode ended while it was stepped with random actions, so truncation was not "
        "seen. Return `truncated` True at a time limit, or set env.max_episode_steps.",
    )  # fmt: skip
