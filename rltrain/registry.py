"""Short names for environments and models, and the one way a `module:factory` is looked up.

A line per name: `"name": "package.module:factory"`. Gymnasium ids need no line; algorithms are found by file name.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from types import TracebackType
from typing import Any

from rltrain.errors import ConfigError

ENVIRONMENTS: dict[str, str] = {"null": "rltrain.envs.null:make_env"}
"""Names accepted by `env.id`; the factory takes `env.kwargs` and returns an Env or a VectorEnv."""

MODELS: dict[str, str] = {"null": "rltrain.models.null:make_model"}
"""Names accepted by `model.kind` besides the built-in kinds; the factory takes the env spec and `model.kwargs`."""

_PACKAGES = frozenset("""
    rltrain torch torchgen functorch numpy click rich tensorboard tensorboard_data_server pydantic pydantic_core cffi
    _cffi_backend pycparser psutil pynvml PIL absl annotated_types cloudpickle farama_notifications filelock fsspec
    grpc isympy jinja2 markdown markdown_it markupsafe mdurl mpmath networkx packaging pygments sympy
    typing_extensions typing_inspection werkzeug pip setuptools pkg_resources _distutils_hack wheel moviepy imageio
    imageio_ffmpeg proglog dotenv
""".split())
"""What is installed with rltrain, gymnasium and the environments apart: on every machine, and never an env or a model,
but full of functions that run commands, write files or evaluate text."""


def look_in(code_dir: str) -> None:
    """Look for modules in this folder first, `run.code_dir`; `auto` and a folder that is gone change nothing."""
    if os.path.isdir(code_dir):
        if code_dir in sys.path:
            sys.path.remove(code_dir)
        sys.path.insert(0, code_dir)


def refusal(target: str) -> str | None:
    """Say why a `module:factory` is none to be called; None where nothing is known against it.

    A configuration may come from elsewhere: what is on every machine anyway, `os:system` above all, it must not call.
    """
    module = target.partition(":")[0].split(".")[0]
    if module not in sys.stdlib_module_names and module not in _PACKAGES:
        return None
    owner = "is Python's own" if module in sys.stdlib_module_names else "came with rltrain"
    return (
        f"{module!r} {owner}, and what it holds is not called for a configuration. Accepted: `module:factory` of your "
        "own or of a package of environments or models. Give a module of yours that has this name another one."
    )


def load_factory(target: str, option: str) -> Callable[..., Any]:
    """Import the object behind `package.module:factory`; the working directory counts as importable.

    Args:
        target: module and attribute path (`module:Class.method` is allowed).
        option: full option path for messages, such as `env.id`.

    Raises:
        ConfigError: the module or the attribute is missing, or it cannot be called, or must not be: it belongs to
            Python's own library or to a package that came with rltrain, also where another module only passes it on.
            An exception inside the module itself passes: it is the user's, with the traceback of their own lines.
    """
    module_name, _, path = target.partition(":")
    _check_owner(target, target, option)
    _make_working_directory_importable()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise _from_users_code(error, module_name, target, option) from None
        raise ConfigError(
            f"{option} = {target!r}: there is no module {error.name!r}. Accepted: `module:factory` with a module that "
            f"Python finds in {_folders()} or among the installed packages. Install it, run from its folder, or name "
            "that as run.code_dir."
        ) from error
    except Exception as error:
        raise _from_users_code(error, module_name, target, option) from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{option} = {target!r}: {module_name!r} has no {path!r}.{_suggestion(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(
            f"{option} = {target!r} is {type(found).__name__}, which cannot be called. Accepted: a class or a function."
        )
    _check_owner(f"{_owner(found)}:{path}", target, option)
    return found


def _check_owner(named: str, target: str, option: str) -> None:
    if target not in (*ENVIRONMENTS.values(), *MODELS.values()) and (reason := refusal(named)) is not None:
        raise ConfigError(f"{option} = {target!r}: {reason}")


def _owner(found: Any) -> str:
    """Return the module that an object comes from, for an object without one that of its type."""
    while isinstance(found, functools.partial):
        found = found.func
    return str(getattr(found, "__module__", None) or type(found).__module__)


def _from_users_code(error: Exception, module_name: str, target: str, option: str) -> Exception:
    """Return an error of a module of the user's, with the frames that are theirs and what it was imported for."""
    error.__traceback__ = _without_importlib(error.__traceback__)
    error.add_note(f"While importing {module_name!r} for {option} = {target!r}.")
    return error


def _folders() -> str:
    """Name the folders that come before Python's own path: the run's, where it has one, and the working directory."""
    here = _here()
    return here if not sys.path or sys.path[0] in ("", here) else f"{sys.path[0]}, {here}"


def _here() -> str:
    """The working directory; where an env has removed it, one that nothing is imported from."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.devnull


def _without_importlib(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without this module's own frame and those of the import machinery."""
    if trace is None:
        return None
    rest, file = _without_importlib(trace.tb_next), trace.tb_frame.f_code.co_filename
    if file.startswith("<frozen importlib") or file in (importlib.__file__, __file__):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _make_working_directory_importable() -> None:
    here = _here()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(1, here)  # behind the run's own folder


def _suggestion(name: str, names: list[str]) -> str:
    close = get_close_matches(name, [n for n in names if not n.startswith("_")], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
