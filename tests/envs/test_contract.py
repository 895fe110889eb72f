"""What the check of an environment finds."""

from __future__ import annotations

import traceback
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rltrain.envs.contract import Finding, check
from rltrain.registry import load_factory
from tests.envs.rollout import section, toy


class Odd(gymnasium.Env):
    """Wide observations, large rewards, unbounded or lopsided actions, and a big image."""

    observation_space = spaces.Dict(
        {
            "wide": spaces.Box(-1e6, 1e6, (1,), np.float32),
            "image": spaces.Box(0, 255, (128, 128, 3), np.uint8),
            "still": spaces.Box(0, 1, (2,), np.float32),
        }
    )

    def __init__(self, bound: float = np.inf):
        self.action_space = spaces.Box(-1, bound, (1,), np.float32)

    def observe(self) -> dict[str, Any]:
        """Draw an observation."""
        wide = np.array([self.np_random.normal() * 1e4], np.float32)
        return {"wide": wide, "image": np.zeros((128, 128, 3), np.uint8), "still": np.zeros(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        """Begin."""
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        """Go on."""
        return self.observe(), float(self.np_random.normal() * 1e4), False, False, {}


def found(env: dict) -> list[Finding]:
    findings = list(check(env))
    assert all(f.level in ("ok", "warning", "error") and f.message for f in findings)
    return findings


def messages(env: dict, level: str, topic: str) -> str:
    return "\n".join(f.message for f in found(env) if f.level == level and f.topic == topic)


def test_check_good_env_has_no_warning():
    env = section("CartPole-v1")
    findings = found(env)
    assert [f for f in findings if f.level != "ok"] == []
    assert {"spaces", "vectorization", "time_limit", "seeding", "rewards", "speed", "aliasing", "snapshots"} <= {
        f.topic for f in findings
    }


@pytest.mark.parametrize(
    ("env", "topic", "part"),
    [
        (section("Nowhere-v0"), "build", "not known"),
        (toy("Boom", where="init"), "build", "ValueError: boom"),
        (toy("Boom", k=5), "stepping", "ValueError: boom at"),
        (toy("Boom", k=0, where="reset"), "stepping", "ValueError: boom at"),
        (toy("Boom", k=500), "stepping", "ValueError: boom at"),
        (toy("Spy", action="dict"), "build", "Dict('a': Discrete(2))"),
        (toy("Scripted", rewards=[1.0, float("nan")]), "stepping", "the reward is nan"),
        (toy("Scripted", bad_obs_step=3), "stepping", "is nan at component 0"),
        (toy("Scripted", rewards=[1.0] * 300 + [None]), "rewards", "the reward is None"),
        (section("tests.envs.vector_toys:vector", kwargs={"mode": "SAME_STEP"}), "build", "SAME_STEP"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['id']}-{value['kwargs']}",
)
def test_check_what_stops_training_is_an_error(env, topic, part):
    assert part in messages(env, "error", topic)


@pytest.mark.parametrize(
    ("env", "topic", "part"),
    [
        (toy("Count", end="both"), "truncation", "terminated in the same step"),
        (toy("Count"), "time_limit", "env.max_episode_steps"),
        (toy("Reuse"), "aliasing", "share memory"),
        (toy("SeedEcho", source="numpy"), "seeding", "same seed differ"),
        (toy("Scripted", info=None), "info", "`info` is None"),
        (section("CartPole-v1", vectorization="single"), "vectorization", "env.vectorization"),
        (section("CartPole-v1", frame_stack=2), "vectorization", "cannot keep"),
        (section("tests.envs.test_contract:Odd"), "ranges", "env.normalize_obs"),
        (section("tests.envs.test_contract:Odd"), "images", "128 x 128"),
        (section("tests.envs.test_contract:Odd"), "constant", "obs.still"),
        (section("tests.envs.test_contract:Odd"), "actions", "1 of 1 action components"),
        (section("tests.envs.test_contract:Odd"), "rewards", "env.normalize_reward"),
        (section("tests.envs.test_snapshots:WithHandle"), "snapshots", "cannot be saved"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['id']}-{value['kwargs']}",
)
def test_check_what_makes_training_worse_is_a_warning(env, topic, part):
    assert part in messages(env, "warning", topic)


def test_check_lopsided_action_bounds_say_where_the_middle_is():
    assert "[1.0]" in messages(section("tests.envs.test_contract:Odd", kwargs={"bound": 3.0}), "ok", "actions")


def test_check_options_that_answer_a_warning_silence_it():
    env = section("tests.envs.test_contract:Odd", normalize_obs=True, normalize_reward=True, max_episode_steps=50)
    topics = {f.topic for f in found(env) if f.level == "warning"}
    assert not topics & {"ranges", "rewards", "time_limit"}


def test_check_vector_env_of_a_factory_is_checked_as_a_group():
    findings = found(section("tests.envs.vector_toys:vector", kwargs={"mode": "NEXT_STEP"}))
    assert {f.level for f in findings} == {"ok"}
    assert "vector implementation" in "".join(f.message for f in findings)


class Wrong(Odd):
    """Its leaf `me` is of another dtype and outside its range, its leaf `far` outside its range only."""

    observation_space = spaces.Dict(
        {
            "fine": spaces.Discrete(3),
            "me": spaces.Box(-1, 1, (2,), np.float32),
            "far": spaces.Box(0, 1, (3,), np.float32),
        }
    )

    def observe(self) -> dict[str, Any]:
        """Break both."""
        return {"fine": 1, "me": np.array([0.0, 5.0]), "far": np.array([0, 7, -2], np.float32)}


def test_check_observation_outside_its_space_names_leaf_reason_and_what_training_does(caplog):
    said = messages(section("tests.envs.test_contract:Wrong", kwargs={"bound": 1}), "warning", "observations")
    far, me = said.splitlines()
    assert "obs.me has dtype float64; its space declares float32: training casts float64 to float32" in me
    assert "is 5.0 at component 1, where its space declares -1.0 to 1.0: training takes it as it is" in me
    assert "obs.far is 7.0 at component 1" in far
    assert "2 of 3 components" in far
    assert "dtype" not in far
    assert not caplog.records


@pytest.mark.parametrize(
    ("env", "mode"),
    [
        (toy("Count"), "single"),
        (section("tests.envs.vector_toys:vector", kwargs={"mode": "NEXT_STEP"}), "is in NEXT_STEP"),
        (section("tests.envs.vector_toys:vector", kwargs={"mode": "DISABLED"}), "adapted to NEXT_STEP"),
        (section("CartPole-v1"), "vector environment"),
        (section("configs.own_env:make_env"), "single"),
        (toy("Boom", k=5), "single"),
    ],
    ids=["single", "vector", "disabled", "registered", "own_env", "raises"],
)
def test_check_always_says_how_episodes_end(env, mode):
    findings = found(env)
    assert [mode in f.message for f in findings if f.topic == "autoreset"] == [True]
    assert len([f for f in findings if f.topic == "truncation"]) == 1


def test_check_goes_on_after_stepping_failed():
    findings = found(toy("Boom", k=150))
    assert [f.message for f in findings if f.level == "error"] == [
        f.message for f in findings if f.topic == "stepping" and "boom" in f.message
    ]
    topics = {f.topic for f in found(toy("Boom", k=30))}
    assert topics >= {"spaces", "vectorization", "actions", "rewards", "speed", "seeding", "gymnasium"}


def test_check_syntax_error_names_the_users_line(tmp_path, monkeypatch):
    (tmp_path / "broken_env_module.py").write_text("x = 1\ndef make_env(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = messages(section("broken_env_module:make_env"), "error", "build")
    assert "SyntaxError" in said
    assert "broken_env_module.py:2;" in said


@pytest.mark.parametrize(
    ("text", "kind"),
    [("def make_env(:\n", SyntaxError), ("from os import nothing\n", ImportError), ("1 / 0\n", ZeroDivisionError)],
    ids=["syntax", "import", "zero"],
)
def test_load_factory_module_that_raises_shows_no_frame_of_importlib(text, kind, tmp_path, monkeypatch):
    (tmp_path / f"raises_{kind.__name__}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(kind) as caught:
        load_factory(f"raises_{kind.__name__}:make_env", "env.id")
    shown = "".join(traceback.format_exception(caught.value))
    assert "importlib._bootstrap" not in shown
    assert "importlib/__init__" not in shown
    assert text.strip() in shown
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
