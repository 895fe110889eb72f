"""Which cores each process of a run is kept on, with `pipeline.pin_cores`. Pure; `workers/child.py` applies it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

LEARNER, SERVER = "learner", "inference"
_PREFETCH_THREADS = 1
"""Of the learner, beside those that compute: it gathers the next batch while they do."""


def assign_cores(
    cores: Sequence[int], num_learner_threads: int, has_server: bool, num_actors: int
) -> dict[str, list[int]]:
    """Give the learner's threads, the server and the actors cores of their own, in this order.

    The learner gets a core for each thread that computes and one for the prefetch, but leaves one for each other
    process. What is left behind the server's is dealt out to the actors in turn, so that all cores are used. With
    fewer cores than processes, each thread of the learner, the server and each actor takes the next core, and after the
    last the first again.

    Args:
        cores: numbers of the usable cores, at least one, in the order in which they are given out: as
            `config.machine.by_physical_core` returns them, hyperthreads of a core that is taken come last.
        num_learner_threads: that compute, >= 1.
        has_server: whether there is an inference server.
        num_actors: actor processes, >= 1.

    Returns:
        Name of a process -> the numbers of its cores, ascending; whoever is not named may run on any.
    """
    actors = [f"actor-{i}" for i in range(num_actors)]
    others = [*([SERVER] if has_server else []), *actors]
    assigned: dict[str, set[int]] = {name: set() for name in (LEARNER, *others)}
    if len(cores) <= len(others):
        claims = [LEARNER] * min(num_learner_threads, len(cores)) + others
        for name, core in zip(claims, cycle(cores), strict=False):
            assigned[name].add(core)
    else:
        num_learner = min(num_learner_threads + _PREFETCH_THREADS, len(cores) - len(others))
        assigned[LEARNER] = set(cores[:num_learner])
        if has_server:
            assigned[SERVER] = {cores[num_learner]}
        rest = cores[num_learner + has_server :]
        for i, name in enumerate(actors):
            assigned[name] = set(rest[i::num_actors])
    return {name: sorted(numbers) for name, numbers in assigned.items()}
