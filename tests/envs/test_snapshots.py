"""Env states as data: a restored group goes on exactly as the one it was taken from."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rltrain.envs.snapshots import decode, encode
from rltrain.envs.state_tree import UncapturableError
from rltrain.errors import CheckpointError
from tests.envs.rollout import Rollout, random_actions, section, toy

ENVS = {
    "cartpole-native": section("CartPole-v1"),
    "cartpole-single": section("CartPole-v1", vectorization="single"),
    "cartpole-stacked": section("CartPole-v1", frame_stack=3),
    "acrobot": section("Acrobot-v1", max_episode_steps=40),
    "pendulum": section("Pendulum-v1", max_episode_steps=30),
    "mountain-car": section("MountainCarContinuous-v0", max_episode_steps=45),
    "taxi": section("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"),
    "frozen-lake": section("FrozenLake-v1"),
    "count": toy("Count", n=7),
    "seed-echo": toy("SeedEcho", n=4),
    "reuse": toy("Reuse", n=4, nested=True),
    "count-disabled": section("tests.envs.vector_toys:vector", kwargs={"mode": "DISABLED", "n": 4, "name": "SeedEcho"}),
    "count-sync": section("tests.envs.vector_toys:vector", kwargs={"mode": "NEXT_STEP", "n": 4, "name": "SeedEcho"}),
    "helper-object": section("tests.envs.test_snapshots:WithHelper"),
}


class Dice:
    """A helper object with a generator of its own."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.history: dict[int, tuple] = {}


class WithHelper(gymnasium.Env):
    """Holds a helper that shares its generator, and the same array under two names."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 9, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        """Make the helper."""
        super().reset(seed=seed)
        self.dice = Dice(self.np_random)
        self.total = self.alias = np.zeros(2)
        return self.total.copy(), {}

    def step(self, action):
        """Draw from either side in turn."""
        self.dice.history = {int(action): (1, None, 2.5)}
        self.alias[0] = self.dice.rng.random()
        self.total[1] = self.np_random.random()
        return self.total.copy(), 1.0, bool(self.total[0] > 0.9), False, {}


class WithHandle(gymnasium.Env):
    """Holds something that is not data."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, 9, (1,), np.float32)

    def __init__(self):
        self.stream = iter([1, 2, 3])

    def reset(self, *, seed=None, options=None):
        """Return zeros."""
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Return zeros."""
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Grows(WithHelper):
    """Makes another helper with each step."""

    def step(self, action):
        """Make one."""
        self.more = [*getattr(self, "more", []), Dice(self.np_random)]
        return super().step(action)


class Views:
    """Two arrays over one memory."""

    def __init__(self):
        self.whole = np.zeros(4)
        self.part = self.whole[1:]


@pytest.mark.parametrize("name", ENVS)
def test_restored_group_continues_with_identical_rows(name):
    first = Rollout(ENVS[name], num_envs=3, seed=5).start()
    assert first.spec.snapshot_bytes > 0
    actions = random_actions(first.spec.action, 100, 3)
    first.run(50, actions[:50])
    payload = first.group.snapshot()
    carry = {leaf: rows.copy() for leaf, rows in first.carry.items()}
    expected = first.run(50, actions[50:])
    assert 0 < len(payload) <= first.spec.snapshot_bytes

    second = Rollout(ENVS[name], num_envs=3, seed=99)
    second.group.restore(payload)
    second.carry = carry
    got = second.run(50, actions[50:])
    for key, rows in expected.items():
        np.testing.assert_array_equal(got[key], rows, err_msg=key)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v5", "InvertedPendulum-v5", "Ant-v5"])
def test_restored_mujoco_group_continues_with_identical_rows(env_id):
    pytest.importorskip("mujoco")
    ENVS[env_id] = section(env_id, max_episode_steps=35)
    test_restored_group_continues_with_identical_rows(env_id)


def test_restored_mujoco_env_has_its_contacts():
    mujoco = pytest.importorskip("mujoco")
    env = section("Hopper-v5")
    first = Rollout(env).start()
    first.run(25)  # it stands on the ground
    second = Rollout(env)
    second.group.restore(first.group.snapshot())
    model, data = first.group._envs[0].unwrapped.model, first.group._envs[0].unwrapped.data
    mujoco.mj_forward(model, data)
    assert second.group._envs[0].unwrapped.data.ncon == data.ncon > 0


def test_restored_group_keeps_aliases_of_generators_and_arrays():
    first = Rollout(ENVS["helper-object"]).start()
    first.run(5)
    second = Rollout(ENVS["helper-object"])
    second.group.restore(first.group.snapshot())
    env = second.group._envs[0]
    assert env.dice.rng is env.np_random
    assert env.total is env.alias


@pytest.mark.parametrize("env_id", ["tests.envs.test_snapshots:WithHandle", "LunarLander-v3"])
def test_group_with_foreign_objects_has_no_snapshot(env_id):
    if env_id.startswith("Lunar"):
        pytest.importorskip("Box2D")
        pytest.importorskip("pygame")
    made = Rollout(section(env_id), num_envs=2).start()
    assert made.spec.snapshot_bytes == 0
    assert made.group.snapshot() is None


def test_group_snapshot_that_outgrew_its_bound_is_left_out(caplog):
    made = Rollout(toy("Spy", n=5)).start()  # keeps every action it receives
    made.run(1)
    assert made.group.snapshot() is not None
    made.run(1000)
    assert made.group.snapshot() is None
    assert "beyond the" in caplog.text


def test_group_that_makes_objects_after_its_reset_has_no_snapshot(caplog):
    made = Rollout(section("tests.envs.test_snapshots:Grows")).start()
    assert made.group.snapshot() is not None
    made.run(1)
    assert made.group.snapshot() is None
    assert "was made or dropped" in caplog.text


def test_encode_arrays_that_share_memory_are_refused():
    with pytest.raises(UncapturableError, match="share memory"):
        encode([Views()])


class Tally(list):
    """State outside the `__dict__`: the items of a subclass of a built-in type."""


class Slotted:
    """State outside the `__dict__`: slots."""

    __slots__ = ("__dict__", "value")


@pytest.mark.parametrize("kind", [Tally, Slotted, object])
def test_encode_objects_with_hidden_state_are_refused(kind):
    holder = Views()
    holder.part = kind()
    with pytest.raises(UncapturableError, match=f"Views.*part is a .*{kind.__name__}"):
        encode([holder])


def test_restore_of_another_env_is_an_error():
    payload = Rollout(toy("Count")).start().group.snapshot()
    with pytest.raises(CheckpointError, match="saved was 'Count'"):
        Rollout(toy("SeedEcho")).group.restore(payload)


def test_restore_of_another_group_size_is_an_error():
    payload = Rollout(toy("Count"), num_envs=2).start().group.snapshot()
    with pytest.raises(CheckpointError):
        Rollout(toy("Count"), num_envs=3).group.restore(payload)


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 200])
def test_restore_of_damaged_bytes_is_an_error(damage):
    with pytest.raises(CheckpointError):
        Rollout(toy("Count")).group.restore(damage)


def test_restore_of_a_truncated_snapshot_is_an_error():
    payload = Rollout(section("CartPole-v1")).start().group.snapshot()
    with pytest.raises(CheckpointError):
        Rollout(section("CartPole-v1")).group.restore(payload[:-8])


def test_snapshot_is_json_and_arrays_only():
    payload, _ = encode([Dice(np.random.default_rng(0))])
    length = int.from_bytes(payload[8:16], "little")
    assert json.loads(payload[16 : 16 + length])["tree"][0]["type"] == "Dice"
    assert len(payload) == 16 + length
    copy = Dice(np.random.default_rng(1))
    decode(payload, [copy])
    assert copy.rng.random() == np.random.default_rng(0).random()
