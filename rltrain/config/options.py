"""The tree of options as data: which paths exist, what each accepts in words, which names come near to a wrong one."""

from __future__ import annotations

import types
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rltrain.config.schema import Config

NAMES_ELSEWHERE = {
    "gamma": "discount",
    "lr": "learning_rate",
    "lambda": "gae_lambda",
    "n_steps": "fragment_length",
    "num_steps": "fragment_length",
    "rollout_length": "fragment_length",
    "ent_coef": "entropy_coef",
    "vf_coef": "value_coef",
    "n_epochs": "epochs",
    "num_envs": "envs_per_group",
    "n_envs": "envs_per_group",
    "total_timesteps": "total_env_steps",
    "num_workers": "num_actors",
    "algorithm": "name",
}
"""What other libraries call some options -> what they are called here."""


def leaves(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (full path, field) of every option, in the order of the schema."""
    for name, field in model.model_fields.items():
        section = section_of(field)
        if section is None:
            yield prefix + name, field
        else:
            yield from leaves(section, f"{prefix}{name}.")


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model behind a field that is a section, None for an option."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def find(path: str) -> FieldInfo | None:
    """Return the option or section at a full path; for a key of a free table (`env.kwargs.x`) that table's field."""
    model: type[BaseModel] | None = Config
    field = None
    for name in path.split("."):
        if model is None:
            return field if field is not None and accepts_table(field) else None
        field = model.model_fields.get(name)
        if field is None:
            return None
        model = section_of(field)
    return field


def is_section(path: str) -> bool:
    """Whether a full path names a section."""
    field = find(path)
    return field is not None and section_of(field) is not None


def accepts_table(field: FieldInfo) -> bool:
    """Whether the option is a table with keys of the user's own."""
    return get_origin(field.annotation) is dict


def accepts_none(field: FieldInfo) -> bool:
    """Whether the option can be none, written `"none"`."""
    return type(None) in _alternatives(field.annotation)


def accepts_tuple(field: FieldInfo) -> bool:
    """Whether the option is a list."""
    return any(get_origin(kind) is tuple for kind in _alternatives(field.annotation))


def is_text(field: FieldInfo) -> bool:
    """Whether the option is text and nothing else."""
    return field.annotation is str


def accepted(field: FieldInfo) -> str:
    """Say in words which values the option accepts."""
    if section_of(field) is not None:
        return "a section (a TOML table)"
    return _join([_say(kind, field.metadata) for kind in _alternatives(field.annotation)])


def _alternatives(kind: Any) -> list[Any]:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return [part for arg in get_args(kind) for part in _alternatives(arg)]
    return [kind]


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


_TABLE = "a table, such as {size = 10}"


def _say(kind: Any, metadata: list[Any]) -> str:
    if get_origin(kind) is Annotated:
        base, *own = get_args(kind)
        return _say(base, [m for part in own for m in (part.metadata if isinstance(part, FieldInfo) else [part])])
    if get_origin(kind) is Literal:
        return _join([f'"{choice}"' for choice in get_args(kind)])
    if get_origin(kind) is tuple:
        items = get_args(kind)
        many = "a list of" if items[-1] is Ellipsis else f"a list of {len(items)}"
        return f"{many} values, each {_say(items[0], [])}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): '"none"'}
    return words.get(kind, _TABLE) + (_range(metadata) if kind in (int, float) else _text_rule(kind, metadata))


def _range(metadata: list[Any]) -> str:
    low = high = ""
    for rule in metadata:
        if isinstance(rule, annotated_types.Ge):
            low = f"at least {_limit(rule.ge)}"
        elif isinstance(rule, annotated_types.Gt):
            low = f"above {_limit(rule.gt)}"
        elif isinstance(rule, annotated_types.Le):
            high = f"at most {_limit(rule.le)}"
        elif isinstance(rule, annotated_types.Lt):
            high = f"below {_limit(rule.lt)}"
    return "".join(f" {part}" if i == 0 else f" and {part}" for i, part in enumerate(p for p in (low, high) if p))


def _limit(value: Any) -> str:
    """Write a limit so that it can be read and pasted into TOML."""
    return f"{value:_}" if isinstance(value, int) and value >= 10_000 else str(value)


def _text_rule(kind: Any, metadata: list[Any]) -> str:
    if kind is not str:
        return ""
    return "".join(f" of at most {m.max_length} characters" for m in metadata if isinstance(m, annotated_types.MaxLen))


def suggestion(path: str, algorithm: str) -> str:
    """Return a sentence that names the option a wrong path was probably meant to be, or the names that exist there.

    Args:
        path: full path that does not exist.
        algorithm: the chosen algorithm; options of others are not suggested.
    """
    *parents, key = path.split(".")
    known = [p for p, _ in leaves() if not p.startswith("algo.") or p.split(".")[1] in ("name", algorithm)]
    translated = NAMES_ELSEWHERE.get(_nearest(key, list(NAMES_ELSEWHERE)) or "")
    here = names_at(".".join(parents))
    found: list[str] = [p for p in known if p.rsplit(".", 1)[-1] == key]
    if not found and (near := _nearest(key, here)):
        found = [".".join([*parents, near])]
    if not found and translated:
        found = [p for p in known if p.rsplit(".", 1)[-1] == translated]
    if not found and (near := _nearest(key, [p.rsplit(".", 1)[-1] for p in known])):
        found = [p for p in known if p.rsplit(".", 1)[-1] == near]
    if not found:
        return f"Accepted here: {', '.join(here)}."
    same_section = [p for p in found if p.rsplit(".", 1)[0] == ".".join(parents)]
    return f"Did you mean {' or '.join(same_section or found)}?"


def names_at(path: str) -> list[str]:
    """Return the names of options and sections in a section; the empty path is the top."""
    field = find(path) if path else None
    section = section_of(field) if field is not None else None
    return list((section or Config).model_fields)


def _nearest(name: str, names: list[str]) -> str | None:
    close = get_close_matches(name, names, n=1, cutoff=0.7)
    return close[0] if close else None
