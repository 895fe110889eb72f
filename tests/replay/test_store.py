"""The replay's transitions against lists of rows, bit for bit, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rltrain.fields import ActionSpec, EnvSpec, LeafSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.prioritized import Priorities
from rltrain.replay.store import ReplayStore
from tests.replay.streams import Stream, fragment_for, gathered, layout, spec


def check(store: ReplayStore, stream: Stream, items: list[int]) -> None:
    """Compare transitions with the lists, bit for bit."""
    batch = gathered(store, items)
    for i, item in enumerate(items):
        for name, value in stream.lists.transition(item).items():
            np.testing.assert_array_equal(batch[name][i], value, f"{name} of item {item}")


def follow(made: ReplayLayout, stream: Stream, num_fragments: int, begins_over_at: int = -1) -> set[int]:
    """Feed a stream to a store with priorities and compare all along; return what can be drawn at the end."""
    store, priorities = ReplayStore(made), Priorities(made.num_items, 0.6, 1e-6, 0)
    drawable: set[int] = set()
    for i in range(num_fragments):
        before = priorities.generations.copy()
        entered, left = store.insert(*stream.next())
        priorities.leave(left)
        priorities.enter(entered)
        assert len(set(entered)) == len(entered)
        assert len(set(left)) == len(left), "a generation would be skipped"
        assert not set(entered.tolist()) & (drawable - set(left.tolist())), "given to another transition, and not told"
        drawable = stream.lists.drawable()
        assert set(np.flatnonzero(priorities.tree.masses).tolist()) == drawable
        assert store.size == len(drawable)
        assert ((priorities.generations - before)[left] == 1).all()
        items = sorted(drawable)
        check(store, stream, items if i == num_fragments - 1 else items[:: 1 + len(items) // 20])
        if i == begins_over_at:
            state, store = store.state_dict(), ReplayStore(made)
            store.load_state_dict({name: x.copy() for name, x in state.items()})
            assert store.size == len(drawable)
    return drawable


SHAPES = [
    {"n_step": n, "stack": m, "length": length, "num_envs": envs, "lanes": lanes, "rows": length + n + more}
    for n in (1, 2, 5) for m in (1, 2, 4)
    for length, envs, lanes, more in ((1, 2, 1, 3), (5, 3, 2, 4), (4, 2, 1, 40))
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(f"{k[0]}{v}" for k, v in s.items()))
@pytest.mark.parametrize("seed", range(2))
def test_store_of_a_random_stream_gives_what_lists_give(shape, seed):
    """Ends, truncations, both at once, resets, restarts, wrapped rings, stacks with any beginning, a resume."""
    made = layout(**shape)
    assert follow(made, Stream(seed, made), 40, begins_over_at=25 if seed else -1)


@pytest.mark.parametrize("stack", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_oldest_rows_leave_earlier_where_short_episodes_use_the_frames_up(stack, seed):
    made = layout(stack, rows=120, length=8, n_step=3)
    stream = Stream(seed, made, ends=0.9)
    drawable = follow(made, stream, 60)
    assert stream.lists.oldest[0] > 60 * 8 - 120 + 5, "a test of nothing: the frames sufficed"
    assert len(drawable) > 20


def test_many_rows_that_lose_their_frames_at_once_leave_at_once():
    """Rows of one frame each make room for a fragment of rows that have all four of theirs."""
    made = layout(4, rows=70, length=60, n_step=1, num_envs=1)
    store, before = ReplayStore(made), 0
    for k in range(3):
        fragment = fragment_for(made, k)
        steps = np.arange(61)[:, None, None, None] + np.arange(4)[:, None] + 60 * k
        if k < 2:
            fragment["obs"] = np.broadcast_to(steps, fragment["obs"].shape).astype(np.float32)
        entered, left = store.insert(0, fragment, True)
        assert len(left) == [0, 50, 69][k]
        before += len(entered) - len(left)
        assert store.size == before
    # 87 frames: the last observations, each four frames of its own, are 21 rows, of which the last one waits.
    assert store.size == 20
    np.testing.assert_array_equal(gathered(store, [int(entered[0])])["obs"][0], fragment["obs"][-1 - 21, 0])


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(2, 300))
def test_store_of_many_random_streams_gives_what_lists_give(seed):
    """Streams of random shapes; 40 s in all."""
    rng = np.random.default_rng(seed)
    n, length = int(rng.integers(1, 8)), int(rng.integers(1, 12))
    made = layout(
        int(rng.integers(1, 6)), n, length, int(rng.integers(1, 5)), int(rng.integers(1, 4)),
        length + n + 3 + int(rng.integers(0, 60)),
    )
    follow(made, Stream(seed, made, float(rng.choice([0.02, 0.2, 0.9]))), 60, int(rng.integers(-1, 60)))


def fragments_of(rewards: list[float], end: str | None) -> tuple[ReplayStore, dict[str, np.ndarray]]:
    """A store with one env whose rewards are these, ending after the last one by `terminated` or `truncated`."""
    length = len(rewards) + 1
    made = layout(n_step=3, length=length, num_envs=1, rows=2 * length + 8)
    fragment = fragment_for(made)
    fragment["reward"][:, 0] = [*rewards, 0, 0]
    if end is not None:
        fragment[end][len(rewards) - 1] = True
        fragment["valid"][len(rewards)] = False
    return ReplayStore(made), fragment


@pytest.mark.parametrize(
    ("end", "targets"),
    [("terminated", [12.52, 15.23, 10.65, 8.5, 5.0]), ("truncated", [12.52, 15.23, 17.94, 16.6, 14.0])],
)
def test_n_step_targets_stop_at_either_end_with_the_power_of_the_steps_made(end, targets):
    """Case N02: gamma 0.9, n 3, rewards 1 to 5, every bootstrap value 10."""
    store, fragment = fragments_of([1, 2, 3, 4, 5], end)
    store.insert(0, fragment, False)
    entered, _ = store.insert(0, fragment, True)
    batch = gathered(store, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(batch["return_"] + batch["discount"] * 10, targets, rtol=1e-6)
    np.testing.assert_array_equal(batch["next_obs"][2:], fragment["obs"][[5, 5, 5], 0])
    assert 5 not in entered, "the step after an end is none"


def test_truncation_with_a_termination_counts_as_a_termination():
    store, fragment = fragments_of([1, 2, 3, 4, 5], "terminated")
    fragment["truncated"][4] = True
    store.insert(0, fragment, False)
    store.insert(0, fragment, True)
    assert gathered(store, [2, 3, 4])["discount"].tolist() == [0, 0, 0]


def test_rows_wait_until_their_window_is_whole():
    store, fragment = fragments_of([1, 2, 3, 4, 5], None)
    entered, left = store.insert(0, fragment, False)
    assert entered.tolist() == [0, 1, 2], "six rows came, and three have three behind them"
    assert left.tolist() == []
    entered, _ = store.insert(0, fragment, True)
    assert entered.tolist() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("end", [None, "terminated"])
def test_restarted_env_ends_its_rows_with_the_observation_it_stopped_at(end):
    """Rewards 1 to 5 and, where nothing ended, 0; then a new life: nothing of it may count for the old one."""
    store, fragment = fragments_of([1, 2, 3, 4, 5], end)
    store.insert(0, fragment, False)
    other = fragment_for(store.layout, seed=1)
    other["reward"][:] = 1000
    entered, left = store.insert(0, other, False)
    rest = [5] if end is None else []  # else the step after the end
    batch = gathered(store, [3, 4, *rest])
    np.testing.assert_allclose(batch["return_"], [4 + 0.9 * 5, 5, *(0 for _ in rest)], rtol=1e-6)
    if end is None:
        np.testing.assert_allclose(batch["discount"], [0.9**3, 0.9**2, 0.9], rtol=1e-6)
        np.testing.assert_array_equal(batch["next_obs"], fragment["obs"][[6, 6, 6], 0])
    else:
        assert batch["discount"].tolist() == [0, 0], "an episode that had ended is not truncated"
    assert entered.tolist() == [3, 4, *rest, 7, 8, 9], "row 6 is the observation it stopped at"
    assert left.tolist() == []


def test_full_ring_tells_places_that_were_given_to_other_transitions_in_both_lists():
    made = layout(length=4, n_step=1, num_envs=1, rows=8)
    store = ReplayStore(made)
    results = [store.insert(0, fragment_for(made, seed), seed > 0) for seed in range(3)]
    assert [entered.tolist() for entered, _ in results] == [[0, 1, 2], [3, 4, 5, 6], [7, 0, 1, 2]]
    assert [left.tolist() for _, left in results] == [[], [], [0, 1, 2, 3]]
    assert store.size == 7, "row 3 of the newest fragment waits"


def test_rewards_are_clipped_as_configured():
    made = layout(length=4, num_envs=1, rows=12, reward_clip=1.0)
    store, fragment = ReplayStore(made), fragment_for(made)
    fragment["reward"][:, 0] = [5.0, -3.0, 0.25, 1.0, 0.0]
    store.insert(0, fragment, False)
    assert gathered(store, [0, 1, 2])["return_"].tolist() == [1.0, -1.0, 0.25]
    assert fragment["reward"][0, 0] == 5, "the fragment is the caller's"


ACTIONS = [
    ActionSpec("discrete", (), "int64", (4,), (0,)), ActionSpec("multi_binary", (3,), "int8", (2, 2, 2), (0, 0, 0)),
    ActionSpec("box", (3,), "float64", low=(-1.0,) * 3, high=(1.0,) * 3), ActionSpec("box", (), "float32", low=(0.0,),
                                                                                      high=(1.0,)),
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS, ids=lambda a: f"{a.kind}{len(a.shape)}")
def test_leaves_and_actions_of_all_kinds_come_out_as_they_went_in(action):
    leaves = (
        LeafSpec("obs.a", "discrete", (), "int64", (5,), (2,)), LeafSpec("obs.b.0", "box", (2, 2), "uint8"),
        LeafSpec("obs.b.1", "multi_binary", (3,), "int8", (2, 2, 2), (0, 0, 0)), LeafSpec("obs.c", "box", (), "bool"),
        LeafSpec("obs.d", "box", (5,), "float64"), LeafSpec("obs.e", "box", (70, 61), "uint16"),
    )  # fmt: skip
    made = ReplayLayout(EnvSpec("x", leaves, action), 1, 2, 40, 4, 1, 0.9)
    assert made.check() == []
    store, fragment = ReplayStore(made), fragment_for(made)
    entered, _ = store.insert(0, fragment, False)
    batch = gathered(store, entered.tolist())
    assert set(batch) == {leaf.name for leaf in leaves} | {f"next_{leaf.name}" for leaf in leaves} | {
        "action", "return_", "discount"
    }  # fmt: skip
    for name in ("action", *(leaf.name for leaf in leaves)):
        np.testing.assert_array_equal(batch[name], fragment[name][:3].reshape(batch[name].shape))
    for leaf in leaves:
        behind = fragment[leaf.name][1:4]
        np.testing.assert_array_equal(batch[f"next_{leaf.name}"], behind.reshape(batch[leaf.name].shape))


def test_stacked_leaves_go_their_own_ways():
    """One leaf goes on where the other begins anew: each has its own ring of frames."""
    made = ReplayLayout(
        spec(LeafSpec("obs.a", "box", (3, 5), "uint8"), LeafSpec("obs.b", "multi_discrete", (3,), "int32", (9,) * 3)),
        1, 2, 60, 4, 2, 0.9, 3,
    )  # fmt: skip
    assert made.check() == []
    store, rng = ReplayStore(made), np.random.default_rng(0)
    frames = rng.integers(0, 9, (200, 2, 5), np.uint8)
    numbers = rng.integers(0, 9, (200, 2), np.int32)
    seen = {}
    for k in range(20):
        fragment = fragment_for(made)
        for t in range(5):
            step = 4 * k + t
            fragment["obs.a"][t] = np.stack([frames[step + i] for i in range(3)], 1)
            fragment["obs.b"][t] = np.stack([numbers[step * (1 + 2 * (step % 5 == 0)) % 190 + i] for i in range(3)], 1)
            seen[step] = fragment["obs.a"][t], fragment["obs.b"][t]
        entered, _ = store.insert(0, fragment, k > 0)
        batch = gathered(store, entered.tolist())
        steps = range(max(0, 4 * k - 2), 4 * k + 2)
        for prefix, ahead in (("", 0), ("next_", 2)):
            for i, name in enumerate(("obs.a", "obs.b")):
                wanted = np.concatenate([seen[step + ahead][i] for step in steps])
                np.testing.assert_array_equal(batch[prefix + name], wanted)
