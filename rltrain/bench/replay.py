"""`rltrain bench replay`: what is measured, in which order, and the figures that come of it.

Each library is measured in a round of its own, in which its turns alternate with rltrain's and numpy's, so that all
meet the same machine; it is compared with what rltrain did in that round. One replay of another library lies in memory
at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import psutil

from rltrain.bench.replay_peers import PEERS, Peer
from rltrain.bench.replay_sides import Case, NumpyLimit, Rltrain, Side, Transitions, layout_of
from rltrain.config.machine import usable_cores

INSERT, PAIR, GATHER, BYTES = "inserts/s", "pairs/s", "gathers/s", "bytes per transition"
SPARE_MEMORY = 0.9
"""Of what is available, the part that a replay may take."""
GUESSED_OWN_INSERTS = 4e9
"""Bytes a second, each transition having 500 more; for the time left."""
GUESSED_START_S = 1.5
"""Of a library to be imported and of its first calls; for the time left."""
FIRST_CAPACITY = 2048
"""Of a replay that a library makes first, so that its modules and first calls are in no figure."""
BUSY = 1.25
"""Load for each core above which figures are those of the machine's other work, too."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        cases: one after the other.
        batch_sizes: B of each draw.
        repeats: turns of everything.
        turn_s: length of a turn, in seconds.
        peers: names of `PEERS`.
    """

    cases: tuple[Case, ...]
    batch_sizes: tuple[int, ...] = (32, 256, 1024)
    repeats: int = 7
    turn_s: float = 0.25
    peers: tuple[str, ...] = tuple(PEERS)

    @classmethod
    def full(cls, capacities: tuple[int, ...]) -> Plan:
        """Everything at each of these capacities."""
        return cls(tuple(of(capacity) for of in (vector, frames) for capacity in capacities))

    @classmethod
    def quick(cls) -> Plan:
        """Small replays and short turns: less than a minute where little else runs."""
        return cls((vector(100_000), frames(10_000)), repeats=3, turn_s=0.04)


def vector(capacity: int) -> Case:
    """Return a replay of what a small control task is seen by."""
    return Case((8,), "float32", 1, capacity)


def frames(capacity: int) -> Case:
    """Return a replay of what Atari games are seen by."""
    return Case((4, 84, 84), "uint8", 4, capacity)


@dataclass(frozen=True)
class Figure:
    """What one side did in one round.

    Args:
        case: the replay's.
        what: `INSERT`, `PAIR`, `GATHER` or `BYTES`.
        batch_size: B; None where there is none.
        side: label of the side.
        beside: label of the library whose round it was; None: a round without one.
        values: one for each turn, by the clock.
        cpu_values: the same by the CPU time of this process with all its threads, which other work on the machine
            disturbs less; none for `BYTES`.
    """

    case: Case
    what: str
    batch_size: int | None
    side: str
    beside: str | None
    values: list[float] = field(default_factory=list)
    cpu_values: list[float] = field(default_factory=list)


def median(values: list[float]) -> float:
    """Return the middle one."""
    return statistics.median(values)


class ReplayBench:
    """Measures a plan; `figures` and `notes` hold what is there so far, also when it was interrupted.

    Args:
        plan: what to measure.
        tell: called with (seconds of the expected time that are done, what is being done).
    """

    def __init__(self, plan: Plan, tell: Callable[[float, str], None]):
        self.plan, self._tell = plan, tell
        self.figures: list[Figure] = []
        self.notes: list[str] = []
        """What was left out, and why."""
        load, cores = os.getloadavg()[0], usable_cores()
        if load > BUSY * cores:
            self.notes.append(f"the machine was busy (load {load:.1f}, {cores} cores): trust ratios by CPU time, ( )")
        self._done_s, self._what = 0.0, ""
        self._peers = [PEERS[name] for name in plan.peers if PEERS[name].is_installed]
        missing = [name for name in plan.peers if not PEERS[name].is_installed]
        if missing:
            install = f"pip install -c tools/constraints.txt {' '.join(missing)}"
            self.notes.append(f"not installed: {', '.join(missing)} ({install})")

    @property
    def expected_s(self) -> float:
        """A guess of how long it takes, in seconds."""
        return sum(
            self._own_fill_s(case) + sum(self._peer_fill_s(peer, case) + self._round_s for peer in self._peers)
            + self._round_s * (not self._peers)
            for case in self.plan.cases
        )

    @property
    def _round_s(self) -> float:
        return (4 * len(self.plan.batch_sizes) + 2) * self.plan.repeats * self.plan.turn_s * 1.2

    def _own_fill_s(self, case: Case) -> float:
        return 2 + case.capacity * (case.obs_bytes + 500) / GUESSED_OWN_INSERTS

    def _peer_fill_s(self, peer: Peer, case: Case) -> float:
        return GUESSED_START_S + case.capacity / peer.guessed_inserts_per_s(case.obs_bytes)

    def run(self) -> None:
        """Measure everything."""
        for case in self.plan.cases:
            self._measure(case)

    def _measure(self, case: Case) -> None:
        needed = layout_of(case).num_bytes
        if not self._fits(needed, "rltrain", case):
            return
        self._say(f"{case}: filling")
        transitions = Transitions(case)
        before = _resident_bytes()
        own = Rltrain(transitions)
        _fill(own, case.capacity)
        self._add_bytes(case, own.label, None, before)
        computed = own.layout.num_bytes / own.layout.num_items
        self.figures.append(Figure(case, BYTES, None, f"{own.label}, computed", None, [computed]))
        limit = NumpyLimit(transitions)
        self._advance(self._own_fill_s(case))
        rounds = 0
        for peer in self._peers:
            is_there = self._fits(peer.num_bytes(case), peer.label, case)
            rounds += is_there and self._measure_beside(peer, case, transitions, own, limit)
        if not rounds:
            self._say(f"{case}: rltrain")
            self._alternate(case, own, limit, None)

    def _measure_beside(
        self, peer: Peer, case: Case, transitions: Transitions, own: Rltrain, limit: NumpyLimit
    ) -> bool:
        """Measure a library's round. A failure of its own is noted, and other libraries go on."""
        self._say(f"{case}: filling {peer.label}")
        first = len(self.figures)
        try:
            _fill(peer.make(Transitions(replace(case, capacity=FIRST_CAPACITY))), FIRST_CAPACITY)
            before = _resident_bytes()
            side = peer.make(transitions)
            _fill(side, case.capacity)
            self._add_bytes(case, side.label, side.label, before)
            self._advance(self._peer_fill_s(peer, case))
            self._say(f"{case}: {peer.label}")
            self._alternate(case, own, limit, side)
        except Exception as error:  # whatever another library raises
            del self.figures[first:]
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            self.notes.append(f"{peer.label} cannot be measured: {type(error).__name__}: {reason}")
            self._peers = [other for other in self._peers if other is not peer]
            return False
        finally:
            gc.collect()
        return True

    def _fits(self, num_bytes: int, label: str, case: Case) -> bool:
        available = psutil.virtual_memory().available
        if num_bytes <= SPARE_MEMORY * available:
            return True
        self.notes.append(
            f"{case}: no {label}, which needs {num_bytes / 2**30:.1f} GiB; {available / 2**30:.1f} GiB are available"
        )
        return False

    def _add_bytes(self, case: Case, label: str, beside: str | None, before: int) -> None:
        self.figures.append(Figure(case, BYTES, None, label, beside, [(_resident_bytes() - before) / case.capacity]))

    def _alternate(self, case: Case, own: Rltrain, limit: NumpyLimit, peer: Side | None) -> None:
        """Take turns."""
        beside = None if peer is None else peer.label
        turns: list[tuple[Figure, Callable[[], int]]] = []
        for what, batch_size, label, call in self._calls(own, limit, peer):
            figure = Figure(case, what, batch_size, label, beside)
            self.figures.append(figure)
            turns.append((figure, call))
        for _ in range(self.plan.repeats):
            for figure, call in turns:
                by_clock, by_cpu = _rates(call, self.plan.turn_s)
                figure.values.append(by_clock)
                figure.cpu_values.append(by_cpu)
            self._advance(self._round_s / self.plan.repeats)

    def _calls(
        self, own: Rltrain, limit: NumpyLimit, peer: Side | None
    ) -> Iterator[tuple[str, int | None, str, Callable[[], int]]]:
        """What a turn of each side does; a call returns how many it has done."""
        sides: list[Side] = [own] if peer is None else [own, peer]
        for side in sides:
            yield INSERT, None, side.label, side.insert
        for size in self.plan.batch_sizes:
            for side in sides:
                yield PAIR, size, side.label, _once(side.pair, size)
            yield GATHER, size, own.label, _once(own.gather, size)
            yield GATHER, size, limit.label, _once(limit.gather, size)

    def _advance(self, seconds: float) -> None:
        self._done_s += seconds
        self._tell(self._done_s, self._what)

    def _say(self, what: str) -> None:
        self._what = what
        self._tell(self._done_s, what)


def _once(call: Callable[[int], None], batch_size: int) -> Callable[[], int]:
    def once() -> int:
        call(batch_size)
        return 1

    return once


def _fill(side: Side, capacity: int) -> None:
    num = 0
    while num < capacity:
        num += side.insert()


def _rates(call: Callable[[], int], seconds: float) -> tuple[float, float]:
    """Return how many a call does in a second and in a second of CPU time, from calls for at least `seconds`."""
    call()
    began, cpu_began, num = time.perf_counter(), time.process_time(), 0
    while (now := time.perf_counter()) < began + seconds:
        num += call()
    return num / (now - began), num / max(time.process_time() - cpu_began, 1e-9)


def _resident_bytes() -> int:
    """Memory in use, what was freed having been given back."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)
