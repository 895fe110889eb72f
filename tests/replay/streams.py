"""Random fragments as actors write them, and a replay of Python lists that says what can be drawn from them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rltrain.fields import ActionSpec, EnvSpec, LeafSpec
from rltrain.replay.layout import ReplayLayout

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


def layout(stack: int = 1, n_step: int = 1, length: int = 4, num_envs: int = 2, lanes: int = 1, rows: int = 20,
           **more) -> ReplayLayout:
    """Return a layout of `rows` rows with observations of three floats, or stacks of them."""
    shape = (stack, *FRAME) if stack > 1 else FRAME
    leaf = LeafSpec("obs", "box", shape, "float32")
    spec = EnvSpec("Test-v0", (leaf,), ActionSpec("discrete", (), "int64", (4,), (0,)))
    return ReplayLayout(spec, lanes, num_envs, rows * num_envs * lanes, length, n_step, 0.9, stack, **more)


class ToyEnv:
    """Episodes of random length whose stacks begin now with copies of the first frame, now with zeros."""

    def __init__(self, rng: np.random.Generator, stack: int):
        self.rng, self.stack = rng, stack
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
        row = Row(obs, int(self.rng.integers(4)), float(np.float32(self.rng.normal())), u < 0.1, 0.1 <= u < 0.2, True)
        self.frames = [*self.frames[1:], self.rng.random(FRAME, np.float32)]
        self.has_ended = row.terminated or row.truncated
        return row


@dataclass
class ListReplay:
    """All rows of each env since the start, as (lane, env) -> list."""

    layout: ReplayLayout
    rows: dict[tuple[int, int], list[Row]] = field(default_factory=dict)

    def cut(self, lane: int, env: int, obs: np.ndarray) -> None:
        """End an env's rows at an observation."""
        rows = self.rows[lane, env]
        rows[-1].truncated |= rows[-1].valid and not rows[-1].terminated
        rows.append(Row(obs))

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
            "obs": rows[at].obs, "next_obs": rows[at + k].obs, "action": rows[at].action, "return_": total,
            "discount": 0.0 if last.terminated else factor,
        }

    def drawable(self) -> set[int]:
        """Return the items whose rows and windows are whole, as far as frames do not run out."""
        length, found = self.layout.rows_per_lane, set()
        for (lane, env), rows in self.rows.items():
            for at in range(max(0, len(rows) - length), len(rows) - self.layout.n_step):
                if rows[at].valid:
                    found.add((lane * length + at % length) * self.layout.num_envs + env)
        return found


class Stream:
    """Fragments of all lanes in random order, some of them after a restart.

    Args:
        seed: of everything.
        layout: of the replay that they are for.
    """

    def __init__(self, seed: int, layout: ReplayLayout):
        self.rng = np.random.default_rng(seed)
        self.layout = layout
        self.lists = ListReplay(layout)
        self.envs = {
            (lane, env): self._env() for lane in range(layout.num_lanes) for env in range(layout.num_envs)
        }
        self.begun: set[int] = set()

    def _env(self) -> ToyEnv:
        return ToyEnv(self.rng, self.layout.frame_stack)

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
            rows = self.lists.rows.setdefault((lane, env), [])
            if rows and not is_continued:
                self.lists.cut(lane, env, self.envs[lane, env].obs())
                self.envs[lane, env] = self._env()
            for t in range(length):
                row = self.envs[lane, env].step()
                rows.append(row)
                for name in fragment:
                    fragment[name][t, env] = getattr(row, name)
            fragment["obs"][length, env] = self.envs[lane, env].obs()
        self.begun.add(lane)
        return lane, {name: x[:, :num_envs] for name, x in fragment.items()}, is_continued
