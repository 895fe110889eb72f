"""Read a configuration: defaults, then the TOML file, then the command line; all problems at once.

Called by the command line; workers use `config_from_dict` on what they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrain.config import resolve
from rltrain.config.dump import describe_options, to_toml
from rltrain.config.options import leaves
from rltrain.config.schema import Config
from rltrain.config.source import read
from rltrain.config.validate import config_from_dict, validate
from rltrain.errors import ConfigError

__all__ = ["LoadedConfig", "config_from_dict", "describe_options", "load", "to_toml"]


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and where it came from."""

    config: Config
    """Final: every `auto` that does not need the env or the device has its value."""
    origins: dict[str, str]
    """Full path of every option -> `default`, `file`, `flag`, or `auto` for a derived value."""
    source: Path | None
    """The file that was read."""
    adjustments: list[str]
    """Settings that were made and have no effect, one sentence each; to be told once."""


def load(
    path: Path | None, overrides: Sequence[str] = (), name: str | None = None, seed: int | None = None
) -> LoadedConfig:
    """Read, check and resolve a configuration.

    Args:
        path: TOML file; None for defaults alone.
        overrides: `section.key=value`, laid over the file in order.
        name: replaces `run.name`.
        seed: replaces `run.seed`.

    Raises:
        ConfigError: all problems that were found, together.
    """
    flags = {"run.name": name, "run.seed": seed}
    source, problems = read(path, list(overrides), {k: v for k, v in flags.items() if v is not None})
    config, found, adjustments = validate(source)
    problems += found
    if config is not None and not problems:
        derived = resolve.derive(config)
        problems += resolve.check_size(config, derived)
        if not problems:
            config = resolve.apply(config, derived)
            problems += resolve.check(config, source)
    if problems or config is None:
        raise ConfigError(problems)
    origins = {option: source.origins.get(option, "default") for option, _ in leaves()}
    origins.update(dict.fromkeys(derived, "auto"))
    return LoadedConfig(config, origins, path, adjustments + resolve.unused(config, source))
