"""Looks an environment over before it is trained on: what would go wrong, and why."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Iterator

import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.utils.env_checker import check_env

from rltrain.envs.endings import autoreset, truncation
from rltrain.envs.findings import Finding, findings_of
from rltrain.envs.group import EnvGroup
from rltrain.envs.lookup import find_env
from rltrain.envs.make import describe, has_native, make_group, make_single
from rltrain.envs.probe import Ends, Probe, probe
from rltrain.errors import ConfigError, EnvContractError
from rltrain.fields import ActionSpec, EnvSpec

HANDLED_HERE = ("symmetric and normalized space", "value is infinity", "value is -infinity")
"""What gymnasium's checker warns of and training copes with: actions are scaled, infinite bounds are not used."""
GROUP_SIZE = 2
GROUP_ROWS = 100


def check(env: dict) -> list[Finding]:
    """Build an env as training would, step it with random actions, and return what was found.

    Args:
        env: the `[env]` section as a dict.

    Builds one group of two envs and two single ones. What an env's own code raises becomes a finding, too, and what
    is logged in training is not: the findings say it.
    """
    logger = logging.getLogger("rltrain.envs")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return _check(env)
    finally:
        logger.setLevel(level)


def _check(env: dict) -> list[Finding]:
    try:
        group = make_group(env, GROUP_SIZE, 0, 0)
    except ConfigError as error:
        return [Finding("error", "build", problem) for problem in error.problems]
    except Exception as error:
        return [_raised("build", "importing or building it", error)]
    ends = Ends()
    try:
        findings = list(_check_group(env, group, ends))
    finally:
        group.close()
    if any(f.topic == "spaces" and f.level == "error" for f in findings):
        return findings
    has_single = _has_single(env, group)
    if has_single:
        is_known = any(f.topic == "stepping" and f.level == "error" for f in findings)
        findings += _check_single(env, ends, is_known)
    findings.append(truncation(group.max_episode_steps, ends))
    return [*findings, *_gymnasium_checker(env)] if has_single else findings


# -- the group, as an actor has it ----------------------------------------------------------------------------


def _check_group(env: dict, group: EnvGroup, ends: Ends) -> Iterator[Finding]:
    spec, problem = None, None
    try:
        spec = describe(env, group)
        _step_group(group, spec, ends)
    except ConfigError as error:
        yield from (Finding("error", "spaces", problem) for problem in error.problems)
        return
    except EnvContractError as error:
        problem = Finding("error", "stepping", f"Training stops with: {error}")
    except Exception as error:
        problem = _raised("stepping", "a group of two envs", error)
    yield Finding("ok", "spaces", f"observation {group.observation_space}, action {group.action_space}")
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


def _step_group(group: EnvGroup, spec: EnvSpec, ends: Ends) -> None:
    n, rng = group.num_envs, np.random.default_rng(0)
    obs = {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in spec.obs}
    outputs = [np.zeros(n, dtype) for dtype in ("float32", "bool", "bool", "bool", "float64", "int64")]
    group.reset(obs)
    for _ in range(GROUP_ROWS):
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


def _check_single(env: dict, ends: Ends, is_known: bool) -> list[Finding]:
    """Probe one env; what it raises is a finding unless `is_known`, and what it returned before is looked at, too."""
    findings: list[Finding] = []
    try:
        single = make_single(env)
    except Exception as error:
        return [_raised("build", "building a single environment", error)]
    found, raised = Probe(), None
    try:
        probe(single, found)
    except Exception as error:
        raised = error
    try:
        findings.extend(findings_of(env, single, found))
    except Exception as error:
        raised = raised or error
    finally:
        single.close()
    if raised is not None and not is_known:
        findings.append(_raised("stepping", "the environment, stepped with random actions,", raised))
    ends.join(found.ends)
    return findings


def _has_single(env: dict, group: EnvGroup) -> bool:
    return not group.is_native or isinstance(find_env(env["id"]), Registration)


def _gymnasium_checker(env: dict) -> list[Finding]:
    """Return what gymnasium's own checker has to say, each sentence once."""
    single = make_single({**env, "frame_stack": 1, "resize": None, "grayscale": False})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(single.unwrapped, skip_render_check=True)
        except Exception as error:
            return [Finding("warning", "gymnasium", f"gymnasium's checker stops with: {_last_line(error)}")]
        finally:
            single.close()
    said = dict.fromkeys(_plain(str(w.message)) for w in caught)
    texts = [text for text in said if not any(part in text for part in HANDLED_HERE)]
    return [Finding("warning", "gymnasium", text) for text in texts] or [
        Finding("ok", "gymnasium", "gymnasium's own checker is content")
    ]


def _raised(topic: str, where: str, error: Exception) -> Finding:
    last: traceback.FrameSummary | SyntaxError = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SyntaxError) and error.filename:
        last = error
    place = f"{last.filename}:{last.lineno}"
    return Finding("error", topic, f"{where} raised {_last_line(error)} at {place}; training would stop there.")


def _last_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_plain(str(error))}"


def _plain(text: str) -> str:
    for code in ("\x1b[33m", "\x1b[31m", "\x1b[0m", "WARN: "):
        text = text.replace(code, "")
    return text.strip()
