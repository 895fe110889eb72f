"""Where values come from: a TOML file with its line numbers, and `--set section.key=value`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rltrain.config.options import find, is_section, is_text
from rltrain.errors import ConfigError

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""^\s*([A-Za-z0-9_."'-]+(?:\s*\.\s*[A-Za-z0-9_"'-]+)*)\s*=""")


@dataclass
class Source:
    """Values as they were written, and where each was written."""

    values: dict[str, Any] = field(default_factory=dict)
    """Nested tables; what was set later has replaced what was set earlier."""
    places: dict[str, str] = field(default_factory=dict)
    """Full option path -> `file, line 3` or `--set`."""
    origins: dict[str, str] = field(default_factory=dict)
    """Full option path -> `file` or `flag`."""

    def place(self, path: str) -> str:
        """Return ` (where it was set)` for messages, empty when it is a default."""
        below = (place for option, place in self.places.items() if option.startswith(path + "."))
        place = self.places.get(path) or next(below, None)
        return f" ({place})" if place else ""


def read(path: Path | None, overrides: list[str], flags: dict[str, Any]) -> tuple[Source, list[str]]:
    """Read the file and lay the command line over it.

    Args:
        path: the TOML file, or None for none.
        overrides: `section.key=value`, later ones win.
        flags: option path -> value of a flag of its own (`--name`), stronger than overrides.

    Returns:
        (source, problems with the overrides themselves).

    Raises:
        ConfigError: the file cannot be read or is no TOML.
    """
    source, problems = Source(), []
    if path is not None:
        text = _read_text(path)
        source.values = _parse(text, path)
        lines = _line_numbers(text)
        for option in _paths(source.values):
            source.origins[option] = "file"
            line = _line_of(option, lines)
            source.places[option] = f"{path}, line {line}" if line else str(path)
    for override in overrides:
        option, equals, text = override.partition("=")
        option = option.strip()
        if not equals or not option or not all(option.split(".")):
            problems.append(f"--set {override}: accepted is section.key=value, such as --set run.seed=1.")
            continue
        _lay_over(source, option, parse_value(option, text.strip()), "--set")
    for option, value in flags.items():
        _lay_over(source, option, value, "--" + option.rsplit(".", 1)[-1])
    return source, problems


def parse_value(option: str, text: str) -> Any:
    """Read a value from the command line: as TOML where it is TOML, else as text, so that quotes can be left out."""
    field_ = find(option)
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--set {option}={text[:80]}: {_too_large(error)}.") from None
    if len(parsed) != 1 or (field_ is not None and is_text(field_) and not isinstance(parsed["value"], str)):
        return text
    return parsed["value"]


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = _files_like(path)
        raise ConfigError(f"there is no file {str(path)!r}.{f' Did you mean {near}?' if near else ''}") from None
    except IsADirectoryError:
        raise ConfigError(f"{str(path)!r} is a folder. Accepted: a TOML file, such as configs/cartpole.toml.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no TOML: byte {error.start} is not UTF-8 text.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None


def _files_like(path: Path) -> str | None:
    files = [p for folder in (path.parent, Path("configs")) if folder.is_dir() for p in folder.glob("*.toml")]
    names = {p.name: str(p) for p in reversed(files)}
    close = get_close_matches(path.with_suffix(".toml").name, list(names), n=1)
    return names[close[0]] if close else None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = re.search(r"\(at line (\d+), column (\d+)\)", message)
        if found:
            line, column = int(found[1]), int(found[2])
        else:
            line, column = text.count("\n") + 1, len(text.rsplit("\n", 1)[-1]) + 1
        reason = message.split(" (at ")[0]
        shown = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
        hint = " Text needs quotes." if reason == "Invalid value" else ""
        raise ConfigError(
            f"{path} is no TOML: line {line}, column {column}: {reason}{f': {shown}' if shown else ''}.{hint}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {_too_large(error)}.") from None


def _too_large(error: ValueError | RecursionError) -> str:
    """Say why valid TOML is refused by its reader: integers of thousands of digits are the other case."""
    if isinstance(error, RecursionError):
        return "lists or tables are nested too deeply. Accepted: at most 100 inside each other"
    return f"{error}".split(";")[0]


def _paths(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Full paths of all values; a free table such as `env.kwargs` is one value."""
    found = []
    for key, value in values.items():
        path = prefix + key
        if isinstance(value, dict) and is_section(path):
            found += _paths(value, path + ".")
        else:
            found.append(path)
    return found


def _lay_over(source: Source, option: str, value: Any, place: str) -> None:
    if isinstance(value, dict) and is_section(option):
        for key, item in value.items():
            _lay_over(source, f"{option}.{key}", item, place)
        return
    table = source.values
    *parents, key = option.split(".")
    for name in parents:
        if not isinstance(table.get(name), dict):
            table[name] = {}
        table = table[name]
    table[key] = value
    owner = _owner(option)
    source.origins[owner] = "flag"
    source.places[owner] = place


def _owner(option: str) -> str:
    """The option a path belongs to: `env.kwargs` for `env.kwargs.x`."""
    parts = option.split(".")
    for end in range(1, len(parts)):
        head = ".".join(parts[:end])
        if find(head) is not None and not is_section(head):
            return head
    return option


def _line_numbers(text: str) -> dict[str, int]:
    """Key path -> line number, by a simple scan: headers and `key =`; the first of two equal ones."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = _plain(header[1]) + "."
            lines.setdefault(section[:-1], number)
        elif key := _KEY.match(line):
            lines.setdefault(section + _plain(key[1]), number)
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _line_of(option: str, lines: dict[str, int]) -> int | None:
    """The line of an option, else of a key below it, else of the inline table it is written in."""
    parts = option.split(".")
    if option in lines:
        return lines[option]
    below = [number for path, number in lines.items() if path.startswith(option + ".")]
    above = (lines.get(".".join(parts[:end])) for end in range(len(parts) - 1, 0, -1))
    return min(below) if below else next((number for number in above if number), None)
