"""The replay's transitions against lists of rows, bit for bit."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from rltrain.errors import CheckpointError, ConfigError
from rltrain.fields import ActionSpec, EnvSpec, LeafSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.store import ReplayStore
from tests.replay.streams import Stream, layout


def new_batch(store: ReplayStore, size: int) -> dict[str, np.ndarray]:
    """Arrays for a batch, full of something else."""
    return {f.name: np.full((size, *f.shape), 77, f.dtype) for f in store.batch_fields()}


def gathered(store: ReplayStore, items: list[int]) -> dict[str, np.ndarray]:
    """Return a batch of these items."""
    batch = new_batch(store, len(items))
    store.gather(np.array(items, np.int64), batch)
    return batch


def check(store: ReplayStore, stream: Stream, drawable: set[int]) -> None:
    """Compare every transition that can be drawn with the lists."""
    items = sorted(drawable)
    if not items:
        return
    batch = gathered(store, items)
    for i, item in enumerate(items):
        for name, value in stream.lists.transition(item).items():
            np.testing.assert_allclose(batch[name][i], value, rtol=1e-6, atol=1e-6 if name == "return_" else 0)


SHAPES = [
    {"n_step": n, "stack": m, "length": length, "num_envs": envs, "lanes": lanes, "rows": length + n + more}
    for n in (1, 2, 5) for m in (1, 2, 4)
    for length, envs, lanes, more in ((2, 1, 1, 3), (5, 3, 2, 4), (4, 2, 1, 40))
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(f"{k[0]}{v}" for k, v in s.items()))
@pytest.mark.parametrize("seed", range(3))
def test_store_of_a_random_stream_gives_what_lists_give(shape, seed):
    """Ends, truncations, resets, restarts, wrapped rings, stacks with any beginning."""
    made = layout(**shape)
    stream, store = Stream(seed, made), ReplayStore(made)
    drawable: set[int] = set()
    for i in range(40):
        lane, fragment, is_continued = stream.next()
        entered, left = store.insert(lane, fragment, is_continued)
        assert len(set(entered)) == len(entered)
        drawable = (drawable - set(left.tolist())) | set(entered.tolist())
        assert store.size == len(drawable)
        if made.is_stacked:
            assert drawable <= stream.lists.drawable()
        else:
            assert drawable == stream.lists.drawable()
        if i % 4 == 3:
            check(store, stream, drawable)


def fragments_of(rewards: list[float], end: str | None) -> tuple[ReplayStore, dict[str, np.ndarray]]:
    """A store with one env whose rewards are these, ending after the last one by `terminated` or `truncated`."""
    length = len(rewards) + 1
    made = layout(n_step=3, length=length, num_envs=1, rows=2 * length + 8)
    ones = np.ones((length + 1, 1), bool)
    fragment = {
        "obs": np.arange(3 * (length + 1), dtype=np.float32).reshape(length + 1, 1, 3),
        "action": np.zeros((length + 1, 1), np.int64),
        "reward": np.array([*rewards, 0, 0], np.float32)[:, None],
        "terminated": ~ones, "truncated": ~ones, "valid": ones.copy(),
    }
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
    after = {name: x.copy() for name, x in fragment.items()}
    entered, _ = store.insert(0, after, True)
    batch = gathered(store, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(batch["return_"] + batch["discount"] * 10, targets, rtol=1e-6)
    np.testing.assert_array_equal(batch["next_obs"][2:], fragment["obs"][[5, 5, 5], 0])
    assert 5 not in entered, "the step after an end is none"


def test_rows_wait_until_their_window_is_whole():
    store, fragment = fragments_of([1, 2, 3, 4, 5], None)
    entered, left = store.insert(0, fragment, False)
    assert entered.tolist() == [0, 1, 2], "six rows came, and three have three behind them"
    assert left.tolist() == []
    entered, _ = store.insert(0, fragment, True)
    assert entered.tolist() == [3, 4, 5, 6, 7, 8]


def test_rewards_are_clipped_as_configured():
    made = layout(length=4, num_envs=1, rows=12, reward_clip=1.0)
    store = ReplayStore(made)
    shape = (5, 1)
    fragment = {
        "obs": np.zeros((*shape, 3), np.float32), "action": np.zeros(shape, np.int64),
        "reward": np.array([[5.0], [-3.0], [0.25], [1.0], [0.0]], np.float32),
        "terminated": np.zeros(shape, bool), "truncated": np.zeros(shape, bool), "valid": np.ones(shape, bool),
    }
    store.insert(0, fragment, False)
    assert gathered(store, [0, 1, 2])["return_"].tolist() == [1.0, -1.0, 0.25]


def test_dict_observations_and_vector_actions_come_out_as_they_went_in():
    leaves = (
        LeafSpec("obs.a", "discrete", (), "int64", (5,), (2,)), LeafSpec("obs.b", "box", (2, 2), "uint8"),
    )  # fmt: skip
    action = ActionSpec("box", (3,), "float32", low=(-1.0,) * 3, high=(1.0,) * 3)
    made = ReplayLayout(EnvSpec("x", leaves, action), 1, 2, 40, 4, 1, 0.9)
    store, rng = ReplayStore(made), np.random.default_rng(0)
    fragment = {
        "obs.a": rng.integers(2, 7, (5, 2)), "obs.b": rng.integers(0, 255, (5, 2, 2, 2), np.uint8),
        "action": rng.random((5, 2, 3), np.float32), "reward": rng.random((5, 2), np.float32),
        "terminated": np.zeros((5, 2), bool), "truncated": np.zeros((5, 2), bool), "valid": np.ones((5, 2), bool),
    }
    entered, _ = store.insert(0, fragment, False)
    batch = gathered(store, entered.tolist())
    for name in ("obs.a", "obs.b", "action"):
        np.testing.assert_array_equal(batch[name], fragment[name][:3].reshape(6, *fragment[name].shape[2:]))
    for name in ("obs.a", "obs.b"):
        np.testing.assert_array_equal(batch[f"next_{name}"], fragment[name][1:4].reshape(6, *fragment[name].shape[2:]))


@pytest.mark.parametrize("item", [-1, 40])
def test_gather_of_an_item_out_of_range_is_an_error(item):
    store = ReplayStore(layout())
    with pytest.raises(IndexError, match=r"\[0, 40\)"):
        gathered(store, [0, item])


def test_gather_into_arrays_that_do_not_fit_is_an_error():
    store = ReplayStore(layout())
    batch = new_batch(store, 2) | {"obs": np.zeros((2, 4), np.float32)}
    with pytest.raises(ValueError, match="'obs'"):
        store.gather(np.zeros(2, np.int64), batch)


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("num_fragments", [1, 3, 30])
def test_state_goes_on_in_another_store_as_in_the_first(stack, num_fragments):
    """Case C07: size, pointer and contents."""
    made = layout(stack=stack, n_step=2, lanes=2)
    stream, store = Stream(num_fragments, made), ReplayStore(made)
    drawable: set[int] = set()

    def insert(into: list[ReplayStore]) -> None:
        nonlocal drawable
        fragment = stream.next()
        results = [each.insert(*fragment) for each in into]
        for entered, left in results:
            np.testing.assert_array_equal(entered, results[0][0])
            np.testing.assert_array_equal(left, results[0][1])
        drawable = (drawable - set(left.tolist())) | set(entered.tolist())

    for _ in range(num_fragments):
        insert([store])
    other = ReplayStore(made)
    other.load_state_dict({name: x.copy() for name, x in store.state_dict().items()})
    assert other.size == store.size
    for _ in range(12):
        insert([store, other])
    check(other, stream, drawable)


def test_state_of_another_layout_is_refused():
    store = ReplayStore(layout(rows=30))
    with pytest.raises(CheckpointError, match="envs_per_group"):
        ReplayStore(layout(num_envs=3)).load_state_dict(store.state_dict())


def test_million_pong_transitions_need_less_than_7_and_a_half_gigabytes():
    """Stored once for each frame; with both stacks of each transition they are 56 GB."""
    leaf = LeafSpec("obs", "box", (4, 84, 84), "uint8")
    made = ReplayLayout(
        EnvSpec("Pong", (leaf,), ActionSpec("discrete", (), "int64", (6,), (0,))), 2, 8, 1_000_000, 16, 3, 0.99, 4
    )
    assert 1_000_000 * 84 * 84 < made.num_bytes <= 7_500_000_000


def test_file_holds_what_memory_would(tmp_path):
    made = layout(stack=2)
    stream, stores = Stream(1, made), [ReplayStore(made), ReplayStore(made, tmp_path / "replay.bin")]
    for _ in range(20):
        fragment = stream.next()
        results = [store.insert(*fragment) for store in stores]
    items = results[0][0].tolist()
    first, second = (gathered(store, items) for store in stores)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert (tmp_path / "replay.bin").stat().st_size >= made.offsets()["end"]
    assert (tmp_path / "replay.bin").stat().st_mode & 0o777 == 0o600


def test_file_without_room_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"replay.in_file = true needs .* No space left"):
        ReplayStore(layout(), tmp_path / "replay.bin")
    assert not (tmp_path / "replay.bin").exists()


@pytest.mark.parametrize(("rows", "problems"), [(8, 0), (7, 1)])
def test_layout_of_too_few_rows_says_how_many_it_needs(rows, problems):
    found = layout(length=4, n_step=1, rows=rows, num_envs=2).check()
    assert len(found) == problems
    assert all("at least 16" in text and text.startswith("replay.capacity = 14 ") for text in found)


def test_layout_without_stacks_where_frames_are_to_be_stacked_says_so():
    leaf = LeafSpec("obs.x", "box", (3,), "float32")
    spec = EnvSpec("x", (leaf,), ActionSpec("discrete", (), "int64", (4,), (0,)))
    assert "obs.x has no first axis" in ReplayLayout(spec, 1, 1, 100, 4, 1, 0.9, 4).check()[0]
