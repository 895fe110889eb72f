"""Builds env groups from the `[env]` section of a configuration."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.vector import VectorEnv

from rltrain.envs import atari, mujoco_state
from rltrain.envs.autoreset import to_next_step
from rltrain.envs.boundary import describe_action, describe_obs
from rltrain.envs.group import EnvGroup
from rltrain.envs.lookup import accepts, building, find_env, require_spaces
from rltrain.envs.native import NativeGroup
from rltrain.envs.single import SingleGroup
from rltrain.envs.video import record_episodes
from rltrain.envs.wrappers import has_preprocessing, preprocess
from rltrain.errors import ConfigError
from rltrain.fields import EnvSpec

__all__ = ["EnvGroup", "describe", "has_native", "make_group", "make_single", "record_episodes"]


def make_group(
    env: dict, num_envs: int, seed: int, first_env_index: int, singles: list[gymnasium.Env] | None = None,
    num_threads: int | None = None,
) -> EnvGroup:
    """Build N envs that are stepped together; nothing is reset yet.

    Args:
        env: the `[env]` section (`config.schema.EnvSection`) as a dict.
        num_envs: N.
        seed: the run's seed.
        first_env_index: number of the first of these envs in the whole run.
        singles: N envs of `make_single` to step, wrapped further perhaps; None builds them.
        num_threads: of envs that have their own, as Atari's; None: of every core.

    Raises:
        ConfigError: the environment is unknown or lacks a package, or an option does not fit it.
    """
    target = find_env(env["id"])
    if singles is not None:
        return SingleGroup(singles, env["id"], seed, first_env_index, _limit(_registration(target, singles[0]), env))
    if isinstance(target, Registration):
        if env["vectorization"] == "native" or (env["vectorization"] == "auto" and has_native(target, env)):
            vector = _registered_vector(target, env, num_envs, num_threads)
            return NativeGroup(vector, env["id"], seed, first_env_index, _limit(target, env))
        first = None
    else:
        first = _from_factory(target, env, num_envs)
        if isinstance(first, VectorEnv):
            return _factory_group(target, first, env, num_envs, seed, first_env_index)
    envs = [_prepared(target, env, first if i == 0 else None, {}) for i in range(num_envs)]
    return SingleGroup(envs, env["id"], seed, first_env_index, _limit(_registration(target, envs[0]), env))


def make_single(env: dict, render_mode: str | None = None) -> gymnasium.Env:
    """Build one env with the preprocessing and the time limit of an env section, as for a video.

    Args:
        env: the `[env]` section as a dict.
        render_mode: as in `gymnasium.make`; None renders nothing.

    Raises:
        ConfigError: as `make_group`, or the env is made by a factory that takes no `render_mode`.
    """
    target = find_env(env["id"])
    if render_mode is not None and not isinstance(target, Registration) and not accepts(target, "render_mode"):
        raise ConfigError(
            f"env.id = {env['id']!r} cannot be filmed: its factory takes no `render_mode`. Let it take "
            f"`render_mode={render_mode!r}` and the environment return its picture from `render()`."
        )
    single = _prepared(target, env, None, {} if render_mode is None else {"render_mode": render_mode})
    limit = _limit(_registration(target, single), env)
    return single if limit is None else gymnasium.wrappers.TimeLimit(single, limit)


def describe(env: dict, group: EnvGroup) -> EnvSpec:
    """Describe a group's envs; resets them if they are fresh, and their first `reset` then returns that one."""
    return EnvSpec(
        env_id=env["id"],
        obs=describe_obs(group.observation_space),
        action=describe_action(group.action_space),
        is_native=group.is_native,
        max_episode_steps=group.max_episode_steps,
        snapshot_bytes=group.snapshot_bytes(),
    )


def has_native(spec: Registration, env: dict) -> bool:
    """Whether a registration's own vector implementation does all that an env section asks for."""
    creator = spec.vector_entry_point
    if creator is None or spec.additional_wrappers:
        return False
    with building(env["id"], env["kwargs"]):
        if not accepts(creator, *env["kwargs"]):
            return False
    if atari.is_atari(spec):
        return env["kwargs"].get("obs_type", "rgb") == "rgb"
    return not has_preprocessing(env) and (env["max_episode_steps"] is None or accepts(creator, "max_episode_steps"))


# -- native ---------------------------------------------------------------------------------------------------


def _registered_vector(spec: Registration, env: dict, num_envs: int, num_threads: int | None) -> VectorEnv:
    if spec.vector_entry_point is None or spec.additional_wrappers:
        raise ConfigError(
            f"env.vectorization = 'native', but env.id = {env['id']!r} has no vector implementation of its own. "
            "Accepted for it: 'auto' or 'single'."
        )
    limit = _limit(spec, env)
    with building(env["id"], env["kwargs"]):
        if atari.is_atari(spec):
            return to_next_step(atari.make_native(spec, env, num_envs, limit, num_threads), env["id"], None)
        _refuse_preprocessing(env)
        kwargs = dict(env["kwargs"])
        if limit is not None and accepts(spec.vector_entry_point, "max_episode_steps"):
            kwargs["max_episode_steps"] = limit
            limit = None
        elif env["max_episode_steps"] is None:
            limit = None
        vector = gymnasium.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
        return to_next_step(vector, env["id"], limit)


def _factory_group(
    factory: Callable, vector: VectorEnv, env: dict, num_envs: int, seed: int, first_env_index: int
) -> NativeGroup:
    if env["vectorization"] == "single":
        raise ConfigError(
            f"env.vectorization = 'single', but the factory env.id = {env['id']!r} returns a VectorEnv. Accepted for "
            "it: 'auto' or 'native'. Or give a factory that returns a single Env."
        )
    if vector.num_envs != num_envs:
        raise ConfigError(
            f"env.id = {env['id']!r} returned a VectorEnv of {vector.num_envs} environments, but a group has "
            f"{num_envs}. Let the factory take `num_envs`; or set actors.envs_per_group, and eval.num_envs where there "
            f"is evaluation, to {vector.num_envs}."
        )
    _refuse_preprocessing(env)
    own = getattr(vector.spec, "max_episode_steps", None) or getattr(vector.unwrapped, "max_episode_steps", None)
    asked = env["max_episode_steps"]
    limit = min((n for n in (own, asked) if n is not None), default=None)
    is_applied = asked is None or limit == own or accepts(factory, "max_episode_steps", by_name=True)
    vector = to_next_step(vector, env["id"], None if is_applied else asked)
    return NativeGroup(vector, env["id"], seed, first_env_index, limit)


def _refuse_preprocessing(env: dict) -> None:
    if has_preprocessing(env):
        raise ConfigError(
            f"env.frame_stack, env.resize and env.grayscale are not done for the vector environment env.id = "
            f"{env['id']!r}. Leave them out, do them in the environment itself, or set `env.vectorization` to 'single'."
        )


# -- single ---------------------------------------------------------------------------------------------------


def _from_factory(factory: Callable, env: dict, num_envs: int | None, options: dict | None = None) -> Any:
    """Call a factory; `num_envs` (and `max_episode_steps`) are passed if it takes them by name."""
    kwargs = {**env["kwargs"], **(options or {})}
    if num_envs is not None and env["vectorization"] != "single" and accepts(factory, "num_envs", by_name=True):
        kwargs.setdefault("num_envs", num_envs)
        if env["max_episode_steps"] is not None and accepts(factory, "max_episode_steps", by_name=True):
            kwargs.setdefault("max_episode_steps", env["max_episode_steps"])
    with building(env["id"], env["kwargs"]):
        if num_envs is None and accepts(factory, "num_envs", by_name=True) and "num_envs" not in kwargs:
            kwargs["num_envs"] = 1
        built = factory(**kwargs)
    if num_envs is None and isinstance(built, VectorEnv):
        raise ConfigError(
            f"env.id = {env['id']!r} makes vector environments only, and one single environment is needed. Accepted "
            "here: a Gymnasium id or a factory that returns an Env."
        )
    if not isinstance(built, gymnasium.Env | VectorEnv):
        raise ConfigError(
            f"env.id = {env['id']!r} returned {type(built).__name__}. Accepted: a gymnasium.Env or a "
            "gymnasium.vector.VectorEnv. Derive the class from one of them."
        )
    if env["vectorization"] == "native" and not isinstance(built, VectorEnv):
        raise ConfigError(
            f"env.vectorization = 'native', but the factory env.id = {env['id']!r} returns a single Env. Accepted for "
            "it: 'auto' or 'single'."
        )
    return built


def _prepared(
    target: Registration | Callable, env: dict, built: gymnasium.Env | None, options: dict
) -> gymnasium.Env:
    """Build one env unless it is `built`, without its time limit, and wrap it in the preprocessing."""
    if not isinstance(target, Registration):
        single = built if built is not None else _from_factory(target, env, None, options)
        return preprocess(single, env)
    with building(env["id"], env["kwargs"]):
        if atari.is_atari(target) and env["kwargs"].get("obs_type", "rgb") == "rgb":
            game = atari.make_single_game(target, env, {"disable_env_checker": True, **options})
            return preprocess(game, {**env, "resize": None, "grayscale": False})
        if "mujoco" in str(target.entry_point):
            mujoco_state.log_warnings()
        bare = copy.deepcopy(target)
        if not target.additional_wrappers:
            # The group counts steps and keeps the order of calls itself; two wrappers less in each step.
            bare.max_episode_steps, bare.order_enforce = None, False
        single = gymnasium.make(bare, disable_env_checker=True, **env["kwargs"], **options)
    require_spaces(single, env["id"])
    return preprocess(single, env)


def _registration(target: Registration | Callable, single: gymnasium.Env) -> Registration | None:
    return target if isinstance(target, Registration) else single.spec


def _limit(spec: Registration | None, env: dict) -> int | None:
    """Return the time limit in force: the smaller of the environment's own and `env.max_episode_steps`."""
    own = None if spec is None else spec.max_episode_steps
    if spec is not None and own is None and atari.is_atari(spec):
        own = atari.frame_limit(spec, env["kwargs"])
    return min((n for n in (own, env["max_episode_steps"]) if n is not None), default=None)
