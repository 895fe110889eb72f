"""A configuration written out: as TOML for the run folder, as a table for `config show`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrain.config.options import leaves
from rltrain.config.schema import Config

if TYPE_CHECKING:
    from rltrain.config.load import LoadedConfig

_HEADER = """\
# The resolved configuration of this run: every option, `auto` replaced where it was known before the start.
# It can be run again as it is.
"""


@dataclass(frozen=True)
class Option:
    """One option as `config show` prints it."""

    path: str
    value: str
    """As in TOML."""
    origin: str
    meaning: str
    """Meaning, unit and range."""


def to_toml(config: Config) -> str:
    """Write a configuration so that it loads back equal; the options of algorithms that are not chosen are left out."""
    sections: dict[str, list[str]] = {}
    for path, value in _values(config):
        section, _, key = path.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {toml_value(value)}")
    return _HEADER + "".join(f"\n[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def describe_options(loaded: LoadedConfig) -> list[Option]:
    """List every option of the run in the order of the schema."""
    meanings = {path: " ".join((field.description or "").split()) for path, field in leaves()}
    return [
        Option(path, toml_value(value), loaded.origins[path], meanings[path]) for path, value in _values(loaded.config)
    ]


def _values(config: Config) -> list[tuple[str, Any]]:
    values = []
    for path, _ in leaves():
        if path.startswith("algo.") and path.count(".") == 2 and path.split(".")[1] != config.algo.name:
            continue
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name)
        values.append((path, value))
    return values


def toml_value(value: Any) -> str:
    """Write a value as `--set` and a file take it."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)
