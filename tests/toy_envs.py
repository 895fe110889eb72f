"""Small environments with known behaviour or a known fault, named in configurations as `tests.toy_envs:<Name>`.

`make(name, **kwargs)` builds one by its name; the classes themselves serve as factories too. Steps are counted from
1 over the life of an environment.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces


class Count(gymnasium.Env):
    """Observes how many steps the episode has; reward 1; ends after `n` steps.

    Args:
        n: length of an episode.
        end: `term`, `trunc` or `both`.
        reward: reward of each step.
    """

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0, np.inf, (1,), np.float32)

    def __init__(self, n: int = 3, end: str = "term", reward: Any = 1.0):
        self.n, self.end, self.reward = n, end, reward
        self.t = 0

    def observe(self) -> Any:
        """Return the observation."""
        return np.array([self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Begin at 0."""
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any):
        """Count one up."""
        self.t += 1
        ended = self.t >= self.n
        return self.observe(), self.reward, ended and self.end != "trunc", ended and self.end != "term", {}


class Reuse(Count):
    """As `Count`, but all observations and infos are the same arrays, written again and again.

    Args:
        n: length of an episode.
        nested: observe `{"a": Box, "b": (Box, Discrete)}` instead of a Box.
    """

    def __init__(self, n: int = 3, end: str = "trunc", nested: bool = False):
        super().__init__(n, end)
        self.buffer = np.zeros(1, np.float32)
        self.nested = {"a": self.buffer, "b": (np.zeros(1, np.float32), np.zeros((), np.int64))}
        self.is_nested = nested
        if nested:
            pair = spaces.Tuple((Count.observation_space, spaces.Discrete(n + 1)))
            self.observation_space = spaces.Dict({"a": Count.observation_space, "b": pair})

    def observe(self) -> Any:
        """Overwrite the arrays and return them."""
        self.buffer[...] = self.t
        for part in self.nested["b"]:
            part[...] = self.t
        return self.nested if self.is_nested else self.buffer


class Boom(Count):
    """Raises `ValueError("boom")`.

    Args:
        k: step at which it raises; for `reset` the number of resets before it.
        where: `step`, `reset` or `init`.
    """

    def __init__(self, k: int = 57, where: str = "step", n: int = 10**9):
        super().__init__(n)
        self.k, self.where = k, where
        self.num_steps = self.num_resets = 0
        if where == "init":
            raise ValueError("boom")

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Raise if the time has come."""
        if self.where == "reset" and self.num_resets == self.k:
            raise ValueError("boom")
        self.num_resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """Raise if the time has come."""
        self.num_steps += 1
        if self.where == "step" and self.num_steps == self.k:
            raise ValueError("boom")
        return super().step(action)


class Die(Count):
    """Kills its own process with SIGKILL at step `k`.

    Args:
        k: the step.
        n: length of an episode.
        once: a path; the file is made at the first death, and with it there no env dies again.
        spared: the first envs built in a process that do not die.
    """

    num_built = 0

    def __init__(self, k: int = 500, n: int = 20, once: str | None = None, spared: int = 0):
        super().__init__(n)
        self.k = k if Die.num_built >= spared else 0
        self.once = once
        self.num_steps = 0
        Die.num_built += 1

    def step(self, action: Any):
        """Die if the time has come."""
        self.num_steps += 1
        if self.num_steps == self.k and not (self.once and os.path.exists(self.once)):
            if self.once:
                with open(self.once, "x"):
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Hang(Count):
    """Never returns.

    Args:
        k: step at which it hangs; for `reset` the number of resets before it.
        where: `step`, `reset` or `init`.
    """

    def __init__(self, k: int = 20, where: str = "step", n: int = 10):
        super().__init__(n)
        self.k, self.where = k, where
        self.num_steps = self.num_resets = 0
        if where == "init":
            self._hang()

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Hang if the time has come."""
        if self.where == "reset" and self.num_resets == self.k:
            self._hang()
        self.num_resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """Hang if the time has come."""
        self.num_steps += 1
        if self.where == "step" and self.num_steps == self.k:
            self._hang()
        return super().step(action)

    def _hang(self) -> None:
        threading.Event().wait()


class Uneven(Count):
    """Draws random numbers, more or fewer of them with each step; episodes of a length drawn by chance.

    Args:
        n: longest episode.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observe(self) -> Any:
        """Return random numbers."""
        return self.np_random.normal(size=4).astype(np.float32)

    def step(self, action: Any):
        """Draw on."""
        numbers = self.np_random.random(self.np_random.integers(1, 20))
        _, _, _, truncated, info = super().step(action)
        return self.observe(), float(numbers[-1]) + int(action), bool(numbers[0] < 0.1), truncated, info


class Still(Count):
    """Images as of Atari games, 28 kB each, that show nothing.

    Args:
        n: length of an episode.
    """

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def observe(self) -> Any:
        """Return a black image."""
        return np.zeros((4, 84, 84), np.uint8)


class SeedEcho(Count):
    """The observation is a number drawn at each reset from the env's own generator.

    Args:
        n: length of an episode.
        source: `own`, or `numpy` for the global generator of numpy.
    """

    observation_space = spaces.Box(0, 1, (1,), np.float64)

    def __init__(self, n: int = 3, end: str = "term", source: str = "own"):
        super().__init__(n, end)
        self.source = source
        self.drawn = 0.0

    def observe(self) -> np.ndarray:
        """Return the number of this episode."""
        return np.array([self.drawn])

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Draw."""
        super().reset(seed=seed, options=options)
        self.drawn = self.np_random.random() if self.source == "own" else np.random.random_sample()
        return self.observe(), {}


ACTION_SPACES = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary(3),
    "box32": spaces.Box(np.array([0, -3], np.float32), np.array([10, 1], np.float32)),
    "box64": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "dict": spaces.Dict({"a": spaces.Discrete(2)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))),
}


class Spy(Count):
    """Keeps every action, the seed of every reset, and the number of renders; refuses actions outside its space.

    Args:
        n: length of an episode.
        action: a key of `ACTION_SPACES`.
        render_mode: as in Gymnasium.
    """

    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"]}

    def __init__(self, n: int = 5, end: str = "term", action: str = "discrete", render_mode: str | None = None):
        super().__init__(n, end)
        self.action_space = ACTION_SPACES[action]
        self.render_mode = render_mode
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []
        self.num_renders = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """Note the seed."""
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        """Note the action."""
        if not self.action_space.contains(action):
            raise AssertionError(f"{action!r} is not in {self.action_space}")
        self.actions.append(action)
        return super().step(action)

    def render(self) -> np.ndarray:
        """Return a black image."""
        self.num_renders += 1
        return np.zeros((8, 8, 3), np.uint8)


class Scripted(Count):
    """Returns values from a script, one a step and from the start again when it is through.

    Args:
        rewards: rewards in order; None stands for the reward 1.
        bad_obs_step: step (over the life of the env) whose observation is NaN.
        info: what is returned as `info`.
        flag: type of the flags: `bool`, `numpy`, `none` (None) or `two` (the number 2).
        n: length of an episode.
    """

    def __init__(self, rewards: list | None = None, bad_obs_step: int = 0, info: Any = "dict", flag="bool", n: int = 4):
        super().__init__(n, "term")
        self.rewards = rewards or [1.0]
        self.bad_obs_step, self.flag = bad_obs_step, flag
        self.info = {} if info == "dict" else info
        self.num_steps = 0

    def step(self, action: Any):
        """Return the next values of the script."""
        obs, _, terminated, truncated, _ = super().step(action)
        reward = self.rewards[self.num_steps % len(self.rewards)]
        self.num_steps += 1
        if self.num_steps == self.bad_obs_step:
            obs = np.array([np.nan], np.float32)
        convert = {"bool": bool, "numpy": np.bool_, "none": lambda _: None, "two": lambda _: 2}[self.flag]
        return obs, reward, convert(terminated), convert(truncated), self.info


TOYS = (Count, Reuse, Boom, Die, Hang, Uneven, Still, SeedEcho, Spy, Scripted)


def make(name: str, **kwargs: Any) -> gymnasium.Env:
    """Build the toy called `name`."""
    return {toy.__name__: toy for toy in TOYS}[name](**kwargs)


factory = make
"""`tests.toy_envs:factory` with `env.kwargs.name`."""
