"""Which cores the processes of a run are kept on: decided by hand cases, and seen in real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rltrain.config.machine import by_physical_core
from rltrain.supervisor.pinning import assign_cores
from tests.runs import train, until

pytestmark = pytest.mark.timeout(300)

MACHINE = [0, 2, 4, 6, 8, 10, 12, 14]
CASES = {
    "a core for each thread, the prefetch, the server and each actor": (
        (MACHINE[:6], 2, True, 2),
        {"learner": [0, 2, 4], "inference": [6], "actor-0": [8], "actor-1": [10]},
    ),
    "what is left is dealt out to the actors": (
        (MACHINE, 1, True, 2),
        {"learner": [0, 2], "inference": [4], "actor-0": [6, 10, 14], "actor-1": [8, 12]},
    ),
    "without a server": ((MACHINE[:4], 1, False, 2), {"learner": [0, 2], "actor-0": [4], "actor-1": [6]}),
    "the learner leaves one for each other process": (
        (MACHINE[:4], 8, True, 2),
        {"learner": [0], "inference": [2], "actor-0": [4], "actor-1": [6]},
    ),
    "too few are shared in turn": (
        ([3, 5], 1, True, 3),
        {"learner": [3], "inference": [5], "actor-0": [3], "actor-1": [5], "actor-2": [3]},
    ),
    "too few, a learner of two threads": (
        ([3, 5, 7], 2, True, 2),
        {"learner": [3, 5], "inference": [7], "actor-0": [3], "actor-1": [5]},
    ),
    "too few, more threads than cores": (
        ([3, 5], 4, True, 1), {"learner": [3, 5], "inference": [3], "actor-0": [5]},
    ),
    "one core": (([9], 2, True, 1), {"learner": [9], "inference": [9], "actor-0": [9]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_assign_cores_by_hand(case):
    arguments, expected = CASES[case]
    assert assign_cores(*arguments) == expected


@pytest.mark.parametrize("has_server", [True, False])
@pytest.mark.parametrize("num_actors", [1, 3, 7])
@pytest.mark.parametrize("threads", [1, 4])
def test_assign_cores_leaves_no_core_unused_and_nobody_without(threads, num_actors, has_server):
    for num_cores in range(1, 24):
        assigned = assign_cores(range(num_cores), threads, has_server, num_actors)
        assert len(assigned) == 1 + has_server + num_actors
        assert all(assigned.values())
        taken = [core for cores in assigned.values() for core in cores]
        assert set(taken) == set(range(min(num_cores, len(taken))))
        if num_cores >= len(assigned):
            assert sorted(taken) == list(range(num_cores)), "none is shared"


def allowed(pid: int, thread: int | None = None) -> set[int]:
    """The cores that the kernel lets a process or one of its threads run on."""
    path = Path(f"/proc/{pid}/task/{thread}/status" if thread else f"/proc/{pid}/status")
    (line,) = (line for line in path.read_text().splitlines() if line.startswith("Cpus_allowed_list:"))
    found = set()
    for part in line.partition(":")[2].strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def test_processes_and_their_threads_run_on_their_cores_and_the_evaluator_on_any(tmp_path):
    options = {
        "run.total_env_steps": 10**9, "log.every_env_steps": 256, "pipeline.pin_cores": True,
        "learner.num_threads": 1, "actors.num_actors": 3, "eval.every_env_steps": 10**8,
    }
    usable = by_physical_core(os.sched_getaffinity(0))
    expected = assign_cores(usable, 1, has_server=True, num_actors=3)
    with train(tmp_path, options) as run:
        children = run.wait_training()
        for name, cores in expected.items():
            pid = children[name].pid
            for thread in os.listdir(f"/proc/{pid}/task"):
                assert allowed(pid, int(thread)) == set(cores), name
        assert allowed(children["evaluator"].pid) == set(usable)
        assert allowed(run.process.pid) == set(usable)
        before = children["actor-1"].pid
        children["actor-1"].kill()
        until(lambda: run.children().get("actor-1", children["actor-1"]).pid != before, "another actor")
        again = run.children()["actor-1"].pid
        until(lambda: allowed(again) == set(expected["actor-1"]), "the new one is kept on the same cores")


def test_without_the_option_processes_run_on_any_core(tmp_path):
    with train(tmp_path, {"run.total_env_steps": 10**9, "log.every_env_steps": 256}) as run:
        for name, process in run.wait_training().items():
            assert allowed(process.pid) == os.sched_getaffinity(0), name
