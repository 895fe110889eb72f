"""From values as written to a `Config`: every problem with names, types and ranges, each told in one message."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rltrain.config.algorithms import AlgoSection
from rltrain.config.options import (
    accepted,
    accepts_none,
    accepts_table,
    accepts_tuple,
    find,
    is_section,
    leaves,
    section_of,
    suggestion,
)
from rltrain.config.schema import Config
from rltrain.config.source import Source

ALGORITHMS = tuple(name for name in AlgoSection.model_fields if name != "name")
MAX_DEPTH = 100
"""Lists and tables inside each other; pydantic takes 255 for a loop."""
MAX_INT_BITS = 4096
"""Python refuses to write integers of more than 4300 digits."""
MAX_SHOWN = 200
"""Characters of a value in a message."""


def validate(source: Source) -> tuple[Config | None, list[str], list[str]]:
    """Check names, types and ranges.

    Args:
        source: values as written.

    Returns:
        (the configuration, or None when there are problems; the problems; settings left out, one sentence each).
    """
    problems: list[str] = []
    adjustments: list[str] = []
    algorithm = _chosen(source.values)
    values = _known(source.values, "", source, algorithm, problems, adjustments)
    try:
        config = config_from_dict(values)
    except ValidationError as error:
        wrong = {_option_of(part["loc"]) for part in error.errors()}
        problems += [_say_wrong(path, field, values, source) for path, field in leaves() if path in wrong]
        return None, problems, adjustments
    return (None if problems else config), problems, adjustments


def config_from_dict(values: dict[str, Any]) -> Config:
    """Build a configuration from nested tables, as read from TOML or JSON or dumped by `model_dump`.

    Args:
        values: section -> option -> value; lists stand for tuples, `"none"` for None.

    Raises:
        pydantic.ValidationError: a value does not fit.
    """
    return Config.model_validate(_prepared(values, Config))


def _prepared(values: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Turn what TOML and JSON cannot write into what the strict schema wants."""
    ready = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        section = section_of(field) if field is not None else None
        if section is not None and isinstance(value, dict):
            value = _prepared(value, section)
        elif field is not None and value == "none" and accepts_none(field):
            value = None
        elif field is not None and isinstance(value, list) and accepts_tuple(field):
            value = tuple(value)
        ready[name] = value
    return ready


def _chosen(values: dict[str, Any]) -> str | None:
    """The chosen algorithm's name, None when the choice is not a valid one."""
    section = values.get("algo", {})
    name = section.get("name", "ppo") if isinstance(section, dict) else None
    return name if name in ALGORITHMS else None


def _known(
    values: dict[str, Any], prefix: str, source: Source, algorithm: str | None, problems: list[str],
    adjustments: list[str],
) -> dict[str, Any]:
    """Return the values under valid names; tell of the others."""
    known = {}
    for key, value in values.items():
        path = prefix + key
        field = find(path)
        if field is None:
            hint = suggestion(path, algorithm or "ppo")
            named = f"[{path}]" if isinstance(value, dict) else f"{path} = {show(value)}"
            problems.append(f"{named}{source.place(path)}: there is no such option. {hint}")
        elif is_section(path) and not isinstance(value, dict):
            problems.append(f"{path} = {show(value)}{source.place(path)}: {path} is a section. {_example(path)}")
        elif prefix == "algo." and key in ALGORITHMS and algorithm is not None and key != algorithm:
            _tell_unchosen(path, value, source, algorithm, problems, adjustments)
        elif is_section(path):
            known[key] = _known(value, path + ".", source, algorithm, problems, adjustments)
        elif accepts_table(field) and isinstance(value, dict) and not _is_jsonable(value):
            problems.append(
                f"{path} = {show(value)}{source.place(path)}: accepted are text, numbers, true, false, lists and "
                f"tables, at most {MAX_DEPTH} inside each other."
            )
        else:
            known[key] = value
    return known


def _tell_unchosen(
    section: str, values: dict[str, Any], source: Source, algorithm: str, problems: list[str], adjustments: list[str]
) -> None:
    """Options of an algorithm that is not chosen: a mistake, unless a flag has just chosen another one."""
    name = section.rsplit(".", 1)[-1]
    for key, value in values.items():
        path = f"{section}.{key}"
        setting = f"{path} = {show(value)}{source.place(path)}"
        if source.origins.get("algo.name") == "flag" and source.origins.get(path) == "file":
            adjustments.append(f'{setting} is not used: --set chose algo.name = "{algorithm}".')
            continue
        same = f"algo.{algorithm}.{key}"
        problems.append(
            f'{setting}: the chosen algorithm is "{algorithm}", which does not use it. '
            + (f"Set {same}, or choose" if find(same) else "Remove it, or choose")
            + f' algo.name = "{name}".'
        )


def _option_of(location: tuple[Any, ...]) -> str:
    """The option's path in a location of pydantic, which may go on into unions and elements.

    A location that ends at a section says that the section is missing, which matters for its required option.
    """
    path = ""
    for part in location:
        path = f"{path}.{part}" if path else str(part)
        if not is_section(path):
            return path
    return next(p for p, field in leaves() if p.startswith(path + ".") and field.is_required())


def _say_wrong(path: str, field: FieldInfo, values: dict[str, Any], source: Source) -> str:
    section, _, key = path.rpartition(".")
    table = values
    for name in section.split("."):
        table = table.get(name, {})
    if key not in table:
        return f"{path} is missing. Accepted: {accepted(field)}. {field.description}"
    about = f" {field.description}" if field.annotation is str else ""
    return f"{path} = {show(table[key])}{source.place(path)}: accepted is {accepted(field)}.{about}"


def show(value: Any) -> str:
    """Write a value as in TOML; what is long is cut."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except (ValueError, RecursionError):  # an integer of thousands of digits, hundreds of lists inside each other
        return f"a value too large to print ({type(value).__name__})"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _is_jsonable(value: Any, depth: int = 0) -> bool:
    """Whether a value can be sent to the workers; infinity and NaN can."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth < MAX_DEPTH and all(_is_jsonable(item, depth + 1) for item in items)
    if isinstance(value, int):
        return value.bit_length() <= MAX_INT_BITS
    return isinstance(value, str | float)


def _example(path: str) -> str:
    first = next(p for p, _ in leaves() if p.startswith(path + "."))
    return f"Write [{path}] and below it its options, such as {first.rsplit('.', 1)[-1]}."
