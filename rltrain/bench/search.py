"""The search of `rltrain tune`: which setting to try next, and why. Pure: rates in, proposals out.

One thing is changed at a time, in the order in which it usually matters: envs per group (larger batches everywhere),
threads of the learner, where the policy runs, actors, groups; then once more, as what was found since may have moved
the best of the others. Where no single change helps, several stages may bind at once, and two are changed together. A
change is kept when it gains more than `GAIN`; of equals the setting before stays. What the probes say about what binds
leaves out what cannot help.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

GAIN = 1.03
"""Ratio of two rates from which one is the better: probes of a few seconds differ by about as much by chance."""
MOST_ENVS = 65_536
MOST_ROUNDS = 3
LEARNER_SLOW = 0.5
"""Share of computing from which more threads may help the learner."""
LEARNER_BINDS = 0.95
"""Share of computing from which more collecting cannot help the learner."""


@dataclass(frozen=True)
class Setting:
    """What is tuned.

    Args:
        num_actors: `actors.num_actors`.
        envs_per_group: `actors.envs_per_group`.
        groups_per_actor: `actors.groups_per_actor`.
        inference: `pipeline.inference`.
        num_threads: `learner.num_threads`.
    """

    num_actors: int
    envs_per_group: int
    groups_per_actor: int
    inference: Literal["server", "local"]
    num_threads: int

    @property
    def num_envs(self) -> int:
        """Envs in the whole run."""
        return self.num_actors * self.envs_per_group * self.groups_per_actor


@dataclass(frozen=True)
class Probe:
    """What a setting did.

    Args:
        rate: env steps learned a second; None where it failed or broke the bound on the policy lag.
        learner_share: part of its time in which the learner computed.
        problem: why there is no rate.
    """

    rate: float | None
    learner_share: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Proposal:
    """A setting to try.

    Args:
        setting: the whole of it.
        reason: why, in a sentence without a stop.
    """

    setting: Setting
    reason: str


Steps = Generator[Proposal, Probe, None]


class Search:
    """Finds the setting with the highest rate.

    Args:
        start: where to begin.
        cores: usable ones.
        is_fixed: says of a setting why it cannot be tried, None where it can.
    """

    def __init__(self, start: Setting, cores: int, is_fixed: Callable[[Setting], str | None] = lambda _: None):
        self.best, self.cores, self._is_fixed = start, cores, is_fixed
        self.probes: dict[Setting, Probe] = {}
        self._steps = self._plan()
        self._open: Proposal | None = next(self._steps)

    @property
    def proposal(self) -> Proposal | None:
        """What to try now; None when there is nothing more that could help."""
        return self._open

    def tell(self, probe: Probe) -> str:
        """Say what came of the proposal; returns what follows from it, in a few words."""
        assert self._open is not None, "there was something to try"
        setting, before = self._open.setting, self.best
        self.probes[setting] = probe
        verdict = self._judge(setting, probe)
        try:
            self._open = self._steps.send(probe)
        except StopIteration:
            self._open = None
        return verdict if self.best is not before or verdict else "no better"

    def _judge(self, setting: Setting, probe: Probe) -> str:
        """Take a setting as the best where it is; the first one is."""
        if probe.rate is None:
            return probe.problem or "failed"
        best = self.probes[self.best].rate if self.best in self.probes else None
        if setting == self.best or best is None:
            self.best = setting
            return "the start"
        gain = probe.rate / best
        if gain > GAIN:
            self.best = setting
            return f"{gain:.2f} x the best so far: kept"
        return f"{gain:.2f} x the best so far: not kept"

    # -- the order of things ----------------------------------------------------------------------------------

    def _plan(self) -> Steps:
        yield Proposal(self.best, "where it begins")
        if self.best.groups_per_actor == 1:
            yield from self._try(replace(self.best, groups_per_actor=2), "one group is stepped while another waits")
        yield from self._climb("envs_per_group", lambda n: 4 * n, "larger batches cost less for each row")
        for turn in range(MOST_ROUNDS):
            before = self.best
            yield from self._threads()
            yield from self._inference()
            yield from self._actors()
            if self.best is before:
                yield from self._pairs()
            yield from self._climb("envs_per_group", lambda n: 2 * n, "larger batches cost less for each row")
            yield from self._climb("envs_per_group", lambda n: n // 2, "smaller batches wait less")
            yield from self._climb("groups_per_actor", lambda n: n + 1, "more envs to step while others wait")
            yield from self._climb("groups_per_actor", lambda n: n - 1, "fewer hand-overs")
            if self.best is before and turn:
                return

    def _inference(self) -> Steps:
        """With the actors that it has, and with as many as there are cores, who then have no server beside them."""
        other: Literal["server", "local"] = "local" if self.best.inference == "server" else "server"
        reason = "no hand-overs to a server" if other == "local" else "larger batches in a server"
        for num_actors in dict.fromkeys((self.best.num_actors, self.cores)):
            yield from self._try(replace(self.best, inference=other, num_actors=num_actors), reason)

    def _pairs(self) -> Steps:
        """Two things at once, where each alone only moves what binds from one stage to another."""
        best = self.best
        for num_threads in dict.fromkeys((min(2 * best.num_threads, self.cores), self.cores)):
            for inference in ("server", "local"):
                num_actors = self.cores if inference == "local" else best.num_actors
                setting = replace(
                    best, num_threads=num_threads, envs_per_group=4 * best.envs_per_group, inference=inference,
                    num_actors=num_actors,
                )
                yield from self._try(setting, "several stages bind at once, so more of each")

    def _threads(self) -> Steps:
        best = self.best
        if self.probes[best].learner_share > LEARNER_SLOW:
            for num_threads in dict.fromkeys((2 * best.num_threads, self.cores // 2, self.cores)):
                if best.num_threads < num_threads <= self.cores:
                    yield from self._try(replace(self.best, num_threads=num_threads), "the learner computes much")
        yield from self._climb("num_threads", lambda n: n // 2, "fewer threads leave cores to the others")

    def _actors(self) -> Steps:
        best = self.best
        if self.probes[best].learner_share < LEARNER_BINDS:
            for num_actors in dict.fromkeys((2 * best.num_actors, self.cores // 2, self.cores)):
                if best.num_actors < num_actors <= 2 * self.cores:
                    yield from self._try(replace(self.best, num_actors=num_actors), "the learner waits for env steps")
        yield from self._climb("num_actors", lambda n: n - max(1, n // 4), "fewer processes on the same cores")

    def _climb(self, name: str, change: Callable[[int], int], reason: str) -> Steps:
        """Change one number in one direction for as long as it gains."""
        while True:
            before = self.best
            value = change(getattr(before, name))
            if value == getattr(before, name) or value < 1:
                return
            yield from self._try(_changed(before, name, value), reason)
            if self.best is before:
                return

    def _try(self, setting: Setting, reason: str) -> Steps:
        """Try a setting that can be tried and has not been."""
        if setting not in self.probes and setting.num_envs <= MOST_ENVS and self._is_fixed(setting) is None:
            yield Proposal(setting, reason)


def _changed(setting: Setting, name: str, value: int) -> Setting:
    changes: dict[str, Any] = {name: value}
    return replace(setting, **changes)
