"""Films episodes."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium

from rltrain.errors import ConfigError


def record_episodes(single: gymnasium.Env, video_dir: Path) -> gymnasium.Env:
    """Wrap an env that renders, so that each of its episodes is written to `policy-episode-<k>.mp4`.

    Args:
        single: an env built by `make_single(env, render_mode="rgb_array")`.
        video_dir: folder for the files, made if it is missing.

    Raises:
        ConfigError: the env does not render, or the package that writes videos is missing.
    """
    name = single.spec.id if single.spec is not None else type(single.unwrapped).__name__
    if single.render_mode != "rgb_array":
        raise ConfigError(
            f"{name} cannot be filmed: its render mode is {single.render_mode!r}. Accepted: 'rgb_array'. Let the "
            "environment support it, or evaluate without a video."
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overwriting existing videos.*")
            return gymnasium.wrappers.RecordVideo(
                single, str(video_dir), episode_trigger=lambda _: True, name_prefix="policy", disable_logger=True
            )
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"{name} cannot be filmed: a package that writes videos is not installed. "
            'Run `pip install -c tools/constraints.txt ".[video]"` in the folder of rltrain.'
        ) from error
