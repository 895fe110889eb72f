"""What a replay holds and how large that is: pure, torch-free, known before anything is reserved."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from rltrain.config.schema import Config
from rltrain.fields import ACTION, NEXT, OBS, EnvSpec, Field, LeafSpec

NEWEST = "newest."
"""Before the name of a stacked leaf: the number of each row's last frame."""
_SLACK_PART = 64
"""Frames beyond one for each row are a 64th of them: each episode's first observation takes a whole stack."""
_TREE_BYTES = 15
"""Of the sum tree with its generations, for each row."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class ReplayLayout:
    """Rows of all env groups, each group's a ring of env steps.

    Args:
        spec: what the env is.
        num_lanes: env groups in the whole run.
        num_envs: N, envs in a group.
        capacity: transitions, rounded up to whole rows of all envs.
        fragment_length: T, rows that come at once.
        n_step: rewards that are summed up, at least 1.
        discount: gamma per env step.
        frame_stack: m; above 1 every observation leaf is [m, ...], and its frames are kept once.
        reward_clip: rewards are clipped to +- this, or None.
    """

    spec: EnvSpec
    num_lanes: int
    num_envs: int
    capacity: int
    fragment_length: int
    n_step: int
    discount: float
    frame_stack: int = 1
    reward_clip: float | None = None

    @classmethod
    def of(cls, config: Config, spec: EnvSpec, num_lanes: int) -> ReplayLayout:
        """Return the layout of a run with this configuration."""
        return cls(
            spec, num_lanes, config.actors.envs_per_group, config.replay.capacity, config.pipeline.fragment_length,
            config.replay.n_step, config.algo.chosen.discount, config.env.frame_stack, config.env.reward_clip,
        )

    @property
    def rows_per_lane(self) -> int:
        """Length of each group's ring, in rows of N envs."""
        return -(-self.capacity // (self.num_lanes * self.num_envs))

    @property
    def num_items(self) -> int:
        """Places for transitions; those of the newest `n_step` rows cannot be drawn yet."""
        return self.num_lanes * self.rows_per_lane * self.num_envs

    @property
    def frames_per_env(self) -> int:
        """Length of each env's ring of frames."""
        return self.rows_per_lane + self.rows_per_lane // _SLACK_PART + 4 * self.frame_stack

    @property
    def is_stacked(self) -> bool:
        """Whether observations are stacks of frames."""
        return self.frame_stack > 1

    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return name -> (shape, dtype) of everything that is kept."""
        rows = (self.num_lanes, self.rows_per_lane, self.num_envs)
        action = self.spec.action
        kept: dict[str, tuple[tuple[int, ...], str]] = {
            ACTION: ((*rows, *action.stored_shape), action.stored_dtype),
            "reward": (rows, "float32"),
            "flags": (rows, "uint8"),
        }
        for leaf in self.spec.obs:
            if self.is_stacked:
                frames = (self.num_lanes * self.num_envs, self.frames_per_env, *leaf.shape[1:])
                kept[leaf.name], kept[NEWEST + leaf.name] = (frames, leaf.dtype), (rows, "int64")
            else:
                kept[leaf.name] = (*rows, *leaf.shape), leaf.dtype
        return kept

    def offsets(self) -> dict[str, int]:
        """Return where each array begins in one block of memory."""
        found, at = {}, 0
        for name, (shape, dtype) in self.arrays().items():
            found[name] = at
            at += -(-prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        found["end"] = at
        return found

    @property
    def num_bytes(self) -> int:
        """Memory of a full replay with its sum tree."""
        return self.offsets()["end"] + _TREE_BYTES * self.num_items

    def batch_fields(self) -> tuple[Field, ...]:
        """Return name, shape and dtype of one transition of a batch.

        Observations by their leaves' names and, with `next_` before them, those behind the n-step window; `action`;
        `return_`, the discounted sum of rewards of the window; `discount`, what the value behind it counts.
        """
        leaves = [Field(prefix + leaf.name, leaf.shape, leaf.dtype) for prefix in ("", NEXT) for leaf in self.spec.obs]
        action = Field(ACTION, self.spec.action.stored_shape, self.spec.action.stored_dtype)
        return (*leaves, action, Field("return_", (), "float32"), Field("discount", (), "float32"))

    def check(self) -> list[str]:
        """Return what makes it impossible, in the words of the configuration."""
        problems = []
        needed = self.fragment_length + self.n_step + 3
        if self.rows_per_lane < needed:
            envs = self.num_lanes * self.num_envs
            problems.append(
                f"replay.capacity = {self.capacity} leaves {self.rows_per_lane} rows for each of the {envs} envs; "
                f"pipeline.fragment_length = {self.fragment_length} and replay.n_step = {self.n_step} need {needed}. "
                f"Accepted: at least {needed * envs}, or shorter fragments."
            )
        wrong = [leaf.name for leaf in self.spec.obs if self.is_stacked and not self._is_stack(leaf)]
        if wrong:
            problems.append(
                f"env.frame_stack = {self.frame_stack}, but {', '.join(wrong)} has no first axis of that length. "
                f"Stack with env.frame_stack alone, or leave it at 1. Observations: {OBS} and below."
            )
        return problems

    def _is_stack(self, leaf: LeafSpec) -> bool:
        return len(leaf.shape) >= 1 and leaf.shape[0] == self.frame_stack
