"""Looks an environment over before it is trained on: what would go wrong, and why."""

from __future__ import annotations

import functools
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.utils.env_checker import check_env

from rltrain.envs.endings import autoreset, truncation
from rltrain.envs.findings import findings_of
from rltrain.envs.group import EnvGroup
from rltrain.envs.lookup import find_env
from rltrain.envs.make import describe, has_native, make_group, make_single
from rltrain.envs.probe import Ends, Probe, probe
from rltrain.envs.report import Call, Finding, Note
from rltrain.errors import ConfigError, EnvContractError
from rltrain.fields import ActionSpec, EnvSpec

HANDLED_HERE = ("symmetric and normalized space", "value is infinity", "value is -infinity")
"""What gymnasium's checker warns of and training copes with: actions are scaled, infinite bounds are not used."""
GROUP_SIZE = 2
GROUP_ROWS = 100
RAISED = (Exception, SystemExit)
"""What an env's own code may raise; its `sys.exit` ends an actor like any other exception."""


def check(env: dict, note: Note = lambda call: None) -> Iterator[Finding]:
    """Build an env as training would, step it with random actions, and yield what is found, when it is found.

    Args:
        env: the `[env]` section as a dict.
        note: told of each call of the env's own code before it is made.

    Builds one group of two envs and two single ones. What an env's own code raises becomes a finding, too, and what
    is logged in training is not: the findings say it.
    """
    logger = logging.getLogger("rltrain.envs")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield from _check(env, note)
    finally:
        logger.setLevel(level)


def _check(env: dict, note: Note) -> Iterator[Finding]:
    note("build")
    try:
        group = make_group(env, GROUP_SIZE, 0, 0)
    except ConfigError as error:
        yield from (Finding("error", "build", problem) for problem in error.problems)
        return
    except RAISED as error:
        yield _raised("build", "importing or building it", error)
        return
    ends, failed = Ends(), set()
    try:
        for finding in _check_group(env, group, ends, note):
            if finding.level == "error":
                failed.add(finding.topic)
            yield finding
    finally:
        note("close")
        group.close()
    if "spaces" in failed:
        return
    has_single = _has_single(env, group)
    if has_single:
        yield from _check_single(env, ends, "stepping" in failed, note)
    yield truncation(group.max_episode_steps, ends)
    if has_single:
        yield from _gymnasium_checker(env, note)


# -- the group, as an actor has it ----------------------------------------------------------------------------


def _check_group(env: dict, group: EnvGroup, ends: Ends, note: Note) -> Iterator[Finding]:
    spec, problem = None, None
    note("first reset")
    try:
        spec = describe(env, group)
    except ConfigError as error:
        yield from (Finding("error", "spaces", problem) for problem in error.problems)
        return
    except RAISED as error:
        problem = _stops(error)
    yield Finding("ok", "spaces", f"observation {group.observation_space}, action {group.action_space}")
    if spec is not None:
        try:
            _step_group(group, spec, ends, note)
        except RAISED as error:
            spec, problem = None, _stops(error)
    yield problem or Finding("ok", "stepping", f"{GROUP_ROWS} steps of a group of two envs, as an actor makes them")
    yield _vectorization(env, group)
    yield autoreset(group)
    yield from _actions(group.action_space)
    yield from _time_limit(group)
    if spec is None:
        return
    if spec.snapshot_bytes == 0:
        yield Finding(
            "warning", "snapshots", "The state of this environment cannot be saved as data, so a resumed run begins "
            "new episodes: it is not the run that was interrupted, number for number.",
        )  # fmt: skip
    else:
        size = spec.snapshot_bytes
        yield Finding("ok", "snapshots", f"env states are part of checkpoints, {size} bytes for two envs")


def _step_group(group: EnvGroup, spec: EnvSpec, ends: Ends, note: Note) -> None:
    n, rng = group.num_envs, np.random.default_rng(0)
    obs = {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in spec.obs}
    outputs = [np.zeros(n, dtype) for dtype in ("float32", "bool", "bool", "bool", "float64", "int64")]
    note("first reset")
    group.reset(obs)
    for _ in range(GROUP_ROWS):
        note("step")
        group.step(_random_actions(spec.action, n, rng), obs, *outputs)
        ends.add(outputs[1], outputs[2])


def _random_actions(spec: ActionSpec, num_envs: int, rng: np.random.Generator) -> np.ndarray:
    shape = (num_envs, *spec.stored_shape)
    if spec.kind == "box":
        return rng.uniform(-1, 1, shape).astype(np.float32)
    return rng.integers(0, np.array(spec.nvec) if spec.stored_shape else spec.nvec[0], shape)


def _vectorization(env: dict, group: EnvGroup) -> Finding:
    target = find_env(env["id"])
    if group.is_native:
        return Finding("ok", "vectorization", "the environment's own vector implementation is stepped (NEXT_STEP)")
    if not isinstance(target, Registration) or target.vector_entry_point is None:
        return Finding("ok", "vectorization", "single environments, stepped one after the other in each actor")
    reason = "env.vectorization is 'single'" if has_native(target, env) else "it cannot keep the other env options"
    return Finding(
        "warning", "vectorization", f"This environment has a vector implementation that is not used, because {reason}; "
        "it is often several times faster. Set env.vectorization to 'auto', or see which option it lacks.",
    )  # fmt: skip


def _actions(space: spaces.Space) -> Iterator[Finding]:
    if not isinstance(space, spaces.Box):
        yield Finding("ok", "actions", f"{space}")
        return
    finite = np.isfinite(space.low) & np.isfinite(space.high)
    if not finite.all():
        yield Finding(
            "warning", "actions", f"{int((~finite).sum())} of {finite.size} action components have an infinite bound. "
            "They are not scaled, so the policy must find their size by itself, and `squashed_gaussian` is refused. "
            "Give `action_space` finite bounds.",
        )  # fmt: skip
    elif not np.allclose(space.low, -space.high):
        yield Finding(
            "ok", "actions", "The action bounds are not symmetric; they are scaled to [-1, 1] for the policy, so that "
            f"its first actions lie around the middle, {((space.low + space.high) / 2).ravel()[:4].tolist()}.",
        )  # fmt: skip
    else:
        yield Finding("ok", "actions", "bounds are finite and symmetric; the policy acts in [-1, 1]")


def _time_limit(group: EnvGroup) -> Iterator[Finding]:
    if group.max_episode_steps is not None:
        limit = group.max_episode_steps
        yield Finding("ok", "time_limit", f"episodes are cut after {limit} steps, as a truncation")


def _check_single(env: dict, ends: Ends, is_known: bool, note: Note) -> Iterator[Finding]:
    """Probe one env; what it raises is a finding unless `is_known`, and what it returned before is looked at, too."""
    note("build")
    try:
        single = make_single(env)
    except RAISED as error:
        yield _raised("build", "building a single environment", error)
        return
    found, raised = Probe(), None
    try:
        probe(single, found, note)
    except RAISED as error:
        raised = error
    try:
        yield from findings_of(env, single, found, note)
    except RAISED as error:
        raised = raised or error
    finally:
        note("close")
        single.close()
    if raised is not None and not is_known:
        yield _raised("stepping", "the environment, stepped with random actions,", raised)
    ends.join(found.ends)


def _has_single(env: dict, group: EnvGroup) -> bool:
    return not group.is_native or isinstance(find_env(env["id"]), Registration)


def _gymnasium_checker(env: dict, note: Note) -> list[Finding]:
    """Return what gymnasium's own checker has to say, each sentence once."""
    note("build")
    single = make_single({**env, "frame_stack": 1, "resize": None, "grayscale": False})
    _note_each(single.unwrapped, note)
    note("gymnasium's checker")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(single.unwrapped, skip_render_check=True)
        except RAISED as error:
            return [Finding("warning", "gymnasium", f"gymnasium's checker stops with: {_last_line(error)}")]
        finally:
            note("close")
            single.close()
    said = dict.fromkeys(_plain(str(w.message)) for w in caught)
    texts = [text for text in said if not any(part in text for part in HANDLED_HERE)]
    return [Finding("warning", "gymnasium", text) for text in texts] or [
        Finding("ok", "gymnasium", "gymnasium's own checker is content")
    ]


def _note_each(env: gymnasium.Env, note: Note) -> None:
    """Note each reset and step of an env from now on, in its own attributes: the checker does not want a wrapper."""

    def noted(method: Callable[..., Any], call: Call) -> Callable[..., Any]:
        @functools.wraps(method)  # the checker looks at the signature
        def noting(*args: Any, **kwargs: Any) -> Any:
            note(call)
            try:
                return method(*args, **kwargs)
            finally:
                note("gymnasium's checker")

        return noting

    env.reset = noted(env.reset, "checker's reset")  # type: ignore[method-assign]
    env.step = noted(env.step, "checker's step")  # type: ignore[method-assign]


def _stops(error: BaseException) -> Finding:
    if isinstance(error, EnvContractError):
        return Finding("error", "stepping", f"Training stops with: {error}")
    return _raised("stepping", "a group of two envs", error)


def _raised(topic: str, where: str, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames if not frame.filename.startswith("<frozen")]  # `exit()` is Python's own code
    last: traceback.FrameSummary | SyntaxError = (shown or frames)[-1]
    if isinstance(error, SyntaxError) and error.filename:
        last = error
    place = f"{last.filename}:{last.lineno}"
    return Finding("error", topic, f"{where} raised {_last_line(error)} at {place}; training would stop there.")


def _last_line(error: BaseException) -> str:
    message = _plain(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _plain(text: str) -> str:
    for code in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: "):
        text = text.replace(code, "")
    return text.strip()
