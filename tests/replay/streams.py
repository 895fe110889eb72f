"""Random fragments as actors write them, and a replay of Python lists that says what can be drawn from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rltrain.fields import ActionSpec, EnvSpec, LeafSpec
from rltrain.replay.layout import ReplayLayout
from rltrain.replay.store import ReplayStore

FRAME = (3,)


@dataclass
class Row:
    """One env step."""

    obs: np.ndarray
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    valid: bool = False
    num_frames: int = 0
    """Frames of its env's observations up to this one, each stack's new ones counted."""


def spec(*leaves: LeafSpec) -> EnvSpec:
    """Return an env with these observations and four actions."""
    return EnvSpec("Test-v0", leaves, ActionSpec("discrete", (), "int64", (4,), (0,)))


def layout(stack: int = 1, n_step: int = 1, length: int = 4, num_envs: int = 2, lanes: int = 1, rows: int = 20,
           **more) -> ReplayLayout:
    """Return a layout of `rows` rows with observations of three floats, or stacks of them."""
    shape = (stack, *FRAME) if stack > 1 else FRAME
    of = spec(LeafSpec("obs", "box", shape, "float32"))
    return ReplayLayout(of, lanes, num_envs, rows * num_envs * lanes, length, n_step, 0.9, stack, **more)


def fragment_for(made: ReplayLayout, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a fragment of a running episode whose contents are random."""
    rng, lead = np.random.default_rng(seed), (made.fragment_length + 1, made.num_envs)
    leaves = {leaf.name: rng.integers(0, 99, (*lead, *leaf.shape)).astype(leaf.dtype) for leaf in made.spec.obs}
    action = made.spec.action
    return {
        **leaves, "action": rng.integers(0, 4, (*lead, *action.stored_shape)).astype(action.stored_dtype),
        "reward": rng.random(lead, np.float32), "terminated": np.zeros(lead, bool), "truncated": np.zeros(lead, bool),
        "valid": np.ones(lead, bool),
    }  # fmt: skip


def new_batch(store: ReplayStore, size: int) -> dict[str, np.ndarray]:
    """Return arrays for a batch, full of something else."""
    return {f.name: np.full((size, *f.shape), 77, f.dtype) for f in store.batch_fields()}


def gathered(store: ReplayStore, items: list[int]) -> dict[str, np.ndarray]:
    """Return a batch of these items."""
    batch = new_batch(store, len(items))
    store.gather(np.array(items, np.int64), batch)
    return batch


class ToyEnv:
    """Episodes of random length whose stacks begin now with copies of the first frame, now with zeros.

    Args:
        rng: for everything.
        stack: frames in an observation.
        ends: probability of an end after a step; half of them are truncations.
    """

    def __init__(self, rng: np.random.Generator, stack: int, ends: float):
        self.rng, self.stack, self.ends = rng, stack, ends
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        frame = self.rng.random(FRAME, np.float32)
        padding = frame if self.rng.random() < 0.5 else np.zeros(FRAME, np.float32)
        self.frames = [padding] * (self.stack - 1) + [frame]
        self.has_ended = False

    def obs(self) -> np.ndarray:
        """Return the observation it stands on."""
        return np.stack(self.frames) if self.stack > 1 else self.frames[0]

    def step(self) -> Row:
        """Make one step, or the reset behind an end."""
        obs = self.obs()
        if self.has_ended:
            self.reset()
            return Row(obs)
        u = self.rng.random()
        terminated, truncated = u < self.ends / 2, self.ends / 3 <= u < self.ends  # now and then both
        row = Row(obs, int(self.rng.integers(4)), float(np.float32(self.rng.normal())), terminated, truncated, True)
        self.frames = [*self.frames[1:], self.rng.random(FRAME, np.float32)]
        self.has_ended = row.terminated or row.truncated
        return row


@dataclass
class ListReplay:
    """All rows of each env since the start, as (lane, env) -> list, and which of them have lost nothing."""

    layout: ReplayLayout
    rows: dict[tuple[int, int], list[Row]] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)
    """Lane -> its oldest row whose frames are all there, as frames allow."""

    def append(self, lane: int, env: int, row: Row) -> None:
        """Add a row; a stack that does not go on from the one before has all its frames for its own."""
        rows, stack = self.rows.setdefault((lane, env), []), self.layout.frame_stack
        goes_on = rows and stack > 1 and np.array_equal(row.obs[:-1], rows[-1].obs[1:])
        row.num_frames = (rows[-1].num_frames if rows else 0) + (1 if goes_on else stack)
        rows.append(row)

    def cut(self, lane: int, env: int, obs: np.ndarray) -> None:
        """End an env's rows at an observation."""
        rows = self.rows[lane, env]
        rows[-1].truncated |= rows[-1].valid and not rows[-1].terminated
        self.append(lane, env, Row(obs))

    def note_lost_frames(self, lane: int) -> None:
        """To be called when a fragment is whole: rows that lost a frame are lost for all envs of the lane."""
        for env in range(self.layout.num_envs):
            rows = self.rows[lane, env]
            oldest_frame = rows[-1].num_frames - self.layout.frames_per_env
            lost = sum(row.num_frames - self.layout.frame_stack < oldest_frame for row in rows)
            self.oldest[lane] = max(self.oldest.get(lane, 0), lost)

    def row_of(self, item: int) -> tuple[list[Row], int]:
        """Return the env's rows, and which of them an item is."""
        place, env = divmod(item, self.layout.num_envs)
        lane, row = divmod(place, self.layout.rows_per_lane)
        rows = self.rows[lane, env]
        return rows, len(rows) - 1 - (len(rows) - 1 - row) % self.layout.rows_per_lane

    def transition(self, item: int) -> dict[str, object]:
        """Return what a batch must hold of an item."""
        rows, at = self.row_of(item)
        assert rows[at].valid
        total, factor, k = 0.0, 1.0, 0
        while k < self.layout.n_step and not (k and (rows[at + k - 1].terminated or rows[at + k - 1].truncated)):
            total += factor * rows[at + k].reward
            factor *= self.layout.discount
            k += 1
        last = rows[at + k - 1]
        return {
            "obs": rows[at].obs, "next_obs": rows[at + k].obs, "action": rows[at].action, "return_": np.float32(total),
            "discount": np.float32(0 if last.terminated else factor),
        }

    def drawable(self) -> set[int]:
        """Return the items whose rows and windows are whole."""
        length, found = self.layout.rows_per_lane, set()
        for (lane, env), rows in self.rows.items():
            oldest = self.oldest.get(lane, 0) if self.layout.is_stacked else 0
            for at in range(max(oldest, len(rows) - length), len(rows) - self.layout.n_step):
                if rows[at].valid:
                    found.add((lane * length + at % length) * self.layout.num_envs + env)
        return found


class Stream:
    """Fragments of all lanes in random order, some of them after a restart.

    Args:
        seed: of everything.
        layout: of the replay that they are for.
        ends: probability of an end after a step.
    """

    def __init__(self, seed: int, layout: ReplayLayout, ends: float = 0.2):
        self.rng = np.random.default_rng(seed)
        self.layout, self.ends = layout, ends
        self.lists = ListReplay(layout)
        self.envs = {
            (lane, env): self._env() for lane in range(layout.num_lanes) for env in range(layout.num_envs)
        }
        self.begun: set[int] = set()

    def _env(self) -> ToyEnv:
        return ToyEnv(self.rng, self.layout.frame_stack, self.ends)

    def next(self) -> tuple[int, dict[str, np.ndarray], bool]:
        """Return (lane, fragment, whether it continues the lane's last one); `lists` knows its rows afterwards."""
        layout, rng = self.layout, self.rng
        lane = int(rng.integers(layout.num_lanes))
        is_continued = lane in self.begun and rng.random() < 0.85
        length, num_envs = layout.fragment_length, layout.num_envs
        shape = (length + 1, num_envs + 1)  # of a wider batch
        fragment = {
            "obs": np.zeros((*shape, *layout.spec.obs[0].shape), np.float32), "action": np.zeros(shape, np.int64),
            "reward": np.zeros(shape, np.float32),
            **{name: np.ones(shape, bool) for name in ("terminated", "truncated", "valid")},
        }
        for env in range(num_envs):
            if lane in self.begun and not is_continued:
                self.lists.cut(lane, env, self.envs[lane, env].obs())
                self.envs[lane, env] = self._env()
            for t in range(length):
                row = self.envs[lane, env].step()
                self.lists.append(lane, env, row)
                for name in fragment:
                    fragment[name][t, env] = getattr(row, name)
            fragment["obs"][length, env] = self.envs[lane, env].obs()
        self.begun.add(lane)
        if layout.is_stacked:
            self.lists.note_lost_frames(lane)
        return lane, {name: x[:, :num_envs] for name, x in fragment.items()}, is_continued
