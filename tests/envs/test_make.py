"""Finding and building environments, and what is said when that fails."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from rltrain.envs.make import make_group, make_single, record_episodes
from rltrain.errors import ConfigError
from tests.envs.rollout import Rollout, section, toy

TOYS = "tests.envs.image_toys"
VECTORS = "tests.envs.vector_toys"


def refusal(env: dict, num_envs: int = 2) -> str:
    with pytest.raises(ConfigError) as caught:
        make_group(env, num_envs, 0, 0)
    return str(caught.value)


@pytest.mark.parametrize(("wrong", "right"), [("CartPole-v9", "CartPole-v1"), ("CARTPOLE-V1", "CartPole-v1")])
def test_make_group_unknown_id_names_the_nearest(wrong, right):
    message = refusal(section(wrong))
    assert repr(wrong) in message
    assert right in message


def test_make_group_unknown_module_or_factory_is_refused():
    assert "there is no module 'nowhere_at_all'" in refusal(section("nowhere_at_all:thing"))
    assert "Did you mean 'Count'" in refusal(section("tests.toy_envs:Coun"))


def test_make_group_module_that_registers_an_id_is_not_a_factory(tmp_path, monkeypatch):
    (tmp_path / "registering_module.py").write_text(
        "import gymnasium\ngymnasium.register('OwnToy-v0', entry_point='tests.toy_envs:Count', max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        made = Rollout(section("registering_module:OwnToy-v0")).start()
        assert made.spec.max_episode_steps == 2
        assert made.run(2)["truncated"][1, 0]
    finally:
        gymnasium.registry.pop("OwnToy-v0", None)
        sys.modules.pop("registering_module", None)


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [("Hopper-v5", "mujoco", "mujoco"), ("LunarLander-v3", "Box2D", "box2d"), ("ALE/Pong-v5", "ale_py", "atari")],
)
def test_make_group_missing_package_names_the_extra(env_id, module, extra, monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    said = refusal(section(env_id))
    assert f'pip install -c tools/constraints.txt ".[{extra}]"' in said
    assert said.count("pip install") == 1


@pytest.mark.parametrize("vectorization", ["auto", "native", "single"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", f"{TOYS}:needs"])
def test_make_group_wrong_kwargs_name_the_option(env_id, vectorization):
    if vectorization == "native" and env_id != "CartPole-v1":
        return
    message = refusal(section(env_id, kwargs={"wrong": 1}, vectorization=vectorization))
    assert "env.kwargs = {'wrong': 1}" in message
    assert env_id in message


def test_make_group_missing_kwarg_names_the_option():
    assert "env.kwargs = {}" in refusal(section(f"{TOYS}:needs"))


def test_make_group_type_error_of_the_factory_itself_passes_with_a_note():
    with pytest.raises(TypeError, match="len") as caught:
        make_group(section(f"{TOYS}:broken"), 1, 0, 0)
    assert "While building" in caught.value.__notes__[0]


def test_make_group_constructor_exception_passes_with_a_note():
    with pytest.raises(ValueError, match="boom") as caught:
        make_group(toy("Boom", where="init"), 1, 0, 0)
    assert "tests.toy_envs:Boom" in caught.value.__notes__[0]


def test_make_group_factory_that_returns_no_env_is_refused():
    assert "returned int" in refusal(section(f"{TOYS}:not_an_env"))


def test_make_group_unsupported_action_space_is_refused():
    assert "Dict('a': Discrete(2))" in refusal(toy("Spy", action="dict"))
    assert "Tuple(Discrete(2), Discrete(2))" in refusal(toy("Spy", action="tuple"))


@pytest.mark.parametrize("mode", ["SAME_STEP", "undeclared"])
def test_make_group_vector_env_in_other_modes_is_refused_by_name(mode, monkeypatch):
    # ale_py writes its mode into this dict, which all vector envs without metadata of their own share.
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", AutoresetMode.NEXT_STEP)
    env = section(f"{VECTORS}:vector", kwargs={"mode": mode})
    if mode == "undeclared":
        env = section(f"{VECTORS}:Undeclared")
    message = refusal(env)
    assert ("declares no autoreset mode" if mode == "undeclared" else "SAME_STEP") in message
    assert "NEXT_STEP" in message
    assert env["id"] in message


def test_make_group_vector_env_of_another_size_is_refused():
    message = refusal(section(f"{VECTORS}:fixed_size"), num_envs=2)
    assert "VectorEnv of 3" in message
    assert "actors.envs_per_group" in message


@pytest.mark.parametrize(
    ("env", "part"),
    [
        (section(f"{VECTORS}:vector", kwargs={"mode": "NEXT_STEP"}, vectorization="single"), "missing"),
        (section(f"{VECTORS}:fixed_size", vectorization="single"), "env.vectorization = 'single'"),
        (section("tests.toy_envs:Count", vectorization="native"), "env.vectorization = 'native'"),
        (section("Pendulum-v1", vectorization="native"), "no vector implementation"),
        (section("CartPole-v1", vectorization="native", frame_stack=2), "env.frame_stack"),
        (section(f"{VECTORS}:vector", kwargs={"mode": "NEXT_STEP"}, max_episode_steps=5), "env.max_episode_steps = 5"),
        (section(f"{VECTORS}:vector", kwargs={"mode": "NEXT_STEP"}, frame_stack=2), "env.frame_stack"),
        (section("CartPole-v1", grayscale=True), "env.grayscale"),
        (section("CartPole-v1", resize=(4, 4)), "env.resize = [4, 4]"),
        (section("FrozenLake-v1", frame_stack=2), "env.frame_stack = 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["id"],
)
def test_make_group_option_that_cannot_be_kept_is_refused(env, part):
    assert part in refusal(env)


def test_make_group_auto_falls_back_to_single_to_keep_preprocessing():
    made = Rollout(section("CartPole-v1", frame_stack=2), num_envs=2).start()
    assert not made.spec.is_native
    assert made.spec.obs[0].shape == (2, 4)


def test_group_preprocesses_grayscale_resize_and_stack():
    pytest.importorskip("cv2")
    env = section(f"{TOYS}:Colours", grayscale=True, resize=(4, 6), frame_stack=3)
    rows = Rollout(env).start().run(8)
    red, greens = round(0.299 * 100), [round(0.587 * (100 + t)) for t in range(1, 7)]
    assert rows["obs"].shape == (9, 1, 3, 4, 6)
    assert rows["obs"].dtype == np.uint8
    frames = rows["obs"][:, 0, :, 0, 0].tolist()
    assert frames[0] == [red] * 3
    assert frames[2] == [red, *greens[:2]]
    assert frames[6] == greens[3:]
    assert frames[7] == [red] * 3


def test_group_resize_keeps_what_is_left_left():
    pytest.importorskip("cv2")
    image = np.zeros((8, 12), np.uint8)
    image[:, :6] = 200
    env = section(f"{TOYS}:Given", kwargs={"space": spaces.Box(0, 255, (8, 12), np.uint8), "obs": image}, resize=(4, 6))
    obs = Rollout(env).start().carry["obs"][0]
    assert obs.tolist() == [[200] * 3 + [0] * 3] * 4


def test_make_single_applies_preprocessing_limit_and_render_mode():
    env = section("tests.toy_envs:Spy", frame_stack=2, max_episode_steps=3)
    single = make_single(env, render_mode="rgb_array")
    assert single.render_mode == "rgb_array"
    obs, _ = single.reset(seed=1)
    assert obs.shape == (2, 1)
    assert [single.step(0)[3] for _ in range(3)] == [False, False, True]
    assert make_single(section("CartPole-v1")).spec.max_episode_steps == 500


def test_record_episodes_writes_one_file_for_each_episode(tmp_path):
    pytest.importorskip("moviepy")
    env = section(f"{TOYS}:Colours", frame_stack=2)
    single = record_episodes(make_single(env, render_mode="rgb_array"), tmp_path)
    made = Rollout.of(make_group(env, 1, 0, 0, [single]), env).start()
    rows = made.run(20)
    made.group.close()
    assert rows["terminated"].sum() == 3
    assert sorted(p.name for p in tmp_path.glob("*.mp4")) == [f"policy-episode-{k}.mp4" for k in range(3)]


def test_record_episodes_of_an_env_that_does_not_render_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be filmed"):
        record_episodes(make_single(toy("Count")), tmp_path)


def test_make_single_of_a_factory_without_render_mode_is_refused():
    with pytest.raises(ConfigError, match="render_mode"):
        make_single(toy("Count"), render_mode="rgb_array")


def test_make_group_mujoco_warnings_write_no_file(tmp_path):
    pytest.importorskip("mujoco")
    code = (
        "from rltrain.config.schema import EnvSection; from rltrain.envs.make import make_group; "
        "make_group(EnvSection(id='HalfCheetah-v5').model_dump(), 2, 0, 0).close()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_make_group_passes_no_render_mode():
    made = Rollout(section("Pendulum-v1"))
    assert made.group._envs[0].unwrapped.render_mode is None


def test_make_single_of_a_vector_factory_is_refused():
    with pytest.raises(ConfigError, match="vector environments only"):
        make_single(section(f"{VECTORS}:vector", kwargs={"mode": "NEXT_STEP"}))


def test_record_episodes_without_a_video_package_gives_one_advice(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moviepy", None)
    env = section("tests.toy_envs:Spy")
    with pytest.raises(ConfigError) as caught:
        record_episodes(make_single(env, render_mode="rgb_array"), tmp_path)
    assert 'pip install -c tools/constraints.txt ".[video]"' in str(caught.value)
    assert str(caught.value).count("pip install") == 1


def test_make_group_registered_env_without_spaces_is_refused_by_name(monkeypatch):
    class Spaceless(gymnasium.Env):
        pass

    registration = gymnasium.envs.registration.EnvSpec(id="Spaceless-v0", entry_point=Spaceless)
    monkeypatch.setitem(gymnasium.registry, "Spaceless-v0", registration)

    with pytest.raises(ConfigError, match=r"Spaceless-v0.* without observation_space and action_space"):
        make_group(section("Spaceless-v0"), 1, 0, 0)


def test_make_single_of_a_factory_that_cannot_film_says_what_it_must_take():
    with pytest.raises(ConfigError, match=r"cannot be filmed: its factory takes no `render_mode`"):
        make_single(section("tests.toy_envs:Count"), render_mode="rgb_array")
