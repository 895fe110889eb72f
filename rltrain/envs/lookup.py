"""Finds what `env.id` names, and turns failures to build it into messages about the configuration."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration

from rltrain.errors import ConfigError
from rltrain.registry import ENVIRONMENTS, load_factory

EXTRAS = {
    "mujoco": "mujoco", "pygame": "box2d", "Box2D": "box2d", "ale_py": "atari", "cv2": "atari"
}  # fmt: skip
"""Module that is missing -> the extra of this package that brings it."""


def find_env(env_id: str) -> Registration | Callable[..., Any]:
    """Return the Gymnasium registration that `env.id` names, or its factory.

    A `module:name` is a factory, unless importing the module registers `name` with Gymnasium.

    Raises:
        ConfigError: there is no such environment; names the nearest ones.
    """
    if env_id in ENVIRONMENTS:
        return _checked(load_factory(ENVIRONMENTS[env_id], "env.id"), env_id)
    if env_id.startswith("ALE/"):
        register_atari(env_id)
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    if ":" in env_id:
        try:
            return _checked(load_factory(env_id, "env.id"), env_id)
        except ConfigError:
            name = env_id.split(":", 1)[1]
            if name in gymnasium.registry:
                return gymnasium.registry[name]
            raise
    raise ConfigError(_unknown(env_id))


def register_atari(env_id: str) -> None:
    """Register the Atari ids.

    Raises:
        ConfigError: ale-py is not installed.
    """
    try:
        gymnasium.register_envs(importlib.import_module("ale_py"))
    except ModuleNotFoundError as error:
        raise ConfigError(missing_package(env_id, error)) from error


def _checked(factory: Callable[..., Any], env_id: str) -> Callable[..., Any]:
    """Return the factory, its signature kept, which then refuses an environment without spaces."""

    @functools.wraps(factory, updated=())
    def build(**kwargs: Any) -> Any:
        built = factory(**kwargs)
        if isinstance(built, gymnasium.Env | gymnasium.vector.VectorEnv):
            require_spaces(built, env_id)
        return built

    return build


def require_spaces(built: Any, env_id: str) -> None:
    """Refuse an environment that does not say what it takes and gives.

    Raises:
        ConfigError: a space is missing; names it.
    """
    prefix = "single_" if isinstance(built, gymnasium.vector.VectorEnv) else ""
    names = [f"{prefix}observation_space", f"{prefix}action_space"]
    missing = [name for name in names if not isinstance(getattr(built, name, None), gymnasium.Space)]
    if missing:
        raise ConfigError(
            f"env.id = {env_id!r} returned {type(built).__name__} without {' and '.join(missing)}. Accepted: an "
            "environment whose two spaces are gymnasium spaces. Set them in its constructor."
        )


def accepts(target: Any, *names: str, by_name: bool = False) -> bool:
    """Whether a constructor or factory (or the one at `module:name`) takes all the keyword arguments `names`.

    Args:
        target: a callable, or `module:name`.
        names: keyword arguments.
        by_name: a `**kwargs` does not count.
    """
    if isinstance(target, str):
        module, _, name = target.partition(":")
        target = getattr(importlib.import_module(module), name)
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return False
    if not by_name and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return True
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named.issuperset(names)


@contextmanager
def building(env_id: str, kwargs: dict) -> Iterator[None]:
    """Turn what goes wrong while an env is built into a `ConfigError` where the configuration is the cause.

    Other exceptions of the env's constructor pass with a note.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        message = missing_package(env_id, error)
        raise ConfigError(message) from error
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id = {env_id!r} cannot be built: {error}. Choose another version or id.") from error
    except TypeError as error:
        if "argument" not in str(error):
            error.add_note(f"While building the environment {env_id!r} with env.kwargs = {kwargs!r}.")
            raise
        raise ConfigError(
            f"env.kwargs = {kwargs!r} does not fit the constructor of env.id = {env_id!r}: {error}. Accepted: its "
            "keyword arguments. Correct or remove the entry."
        ) from error
    except Exception as error:
        error.add_note(f"While building the environment {env_id!r} with env.kwargs = {kwargs!r}.")
        raise


def missing_package(env_id: str, error: BaseException) -> str:
    """Say which package an environment lacks and how to get it."""
    module = _missing_module(error, env_id)
    extra = EXTRAS.get(module)
    if extra is None:
        return f"env.id = {env_id!r} cannot be built: {error}. Install the package that it names."
    return (
        f"env.id = {env_id!r} needs the package {module!r}, which is not installed{_reason(error)}. "
        f'Run `pip install -c tools/constraints.txt ".[{extra}]"` in the folder of rltrain.'
    )


def _reason(error: BaseException) -> str:
    """Return the error in brackets, unless it brings advice of its own, which would install something else."""
    return "" if "pip install" in str(error) else f" ({error})"


def _missing_module(error: BaseException, env_id: str) -> str:
    cause: BaseException | None = error
    while cause is not None:
        name = (getattr(cause, "name", None) or "").split(".")[0]
        if name in EXTRAS:
            return name
        cause = cause.__cause__ or cause.__context__
    text = str(error).lower()
    return next((m for m in EXTRAS if m.lower() in text), "ale_py" if env_id.startswith("ALE/") else "")


def _unknown(env_id: str) -> str:
    by_lower = {name.lower(): name for name in (*gymnasium.registry, *ENVIRONMENTS)}
    close = [by_lower[name] for name in get_close_matches(env_id.lower(), by_lower, n=4, cutoff=0.5)]
    hint = f" Nearest: {', '.join(close)}." if close else ""
    return (
        f"env.id = {env_id!r} is not known.{hint} Accepted: a registered Gymnasium id, a name of rltrain/registry.py, "
        "or `module:factory` of your own."
    )
