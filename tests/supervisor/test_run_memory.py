"""What the processes of a run hold while it goes on: memory, threads, libraries, shared memory; and after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from tests.runs import memory_maps, num_threads, scalars, toy, train, until, variable

pytestmark = pytest.mark.timeout(300)

MIB = 1 << 20
LONG = {"run.total_env_steps": 10**9, "log.every_env_steps": 256}
ACTORS = ("actor-0", "actor-1")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A run that goes on until all tests of this file have looked at it."""
    with train(tmp_path_factory.mktemp("running"), {**LONG, "learner.num_threads": 2}) as run:
        children = run.wait_training()
        assert set(children) == {"learner", "inference", *ACTORS}
        yield run, children


def test_actors_hold_less_than_eighty_mib(running):
    _, children = running
    for name in ACTORS:
        assert children[name].memory_full_info().pss < 80 * MIB, name


def test_actors_load_no_torch(running):
    _, children = running
    for name in ACTORS:
        assert "torch" not in memory_maps(children[name].pid), name
    assert "libtorch" in memory_maps(children["learner"].pid), "else this test could not fail"


def test_supervisor_loads_no_torch(running):
    run, _ = running
    assert "numpy" in memory_maps(run.process.pid)
    assert "libtorch" not in memory_maps(run.process.pid)


def test_actors_compute_on_one_thread_and_the_learner_on_its_own(running):
    _, children = running
    for name in ACTORS:
        assert num_threads(children[name].pid) == 1, name
        for variable_name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            assert variable(children[name].pid, variable_name) == "1"
    assert num_threads(children["inference"].pid) == 1
    assert num_threads(children["learner"].pid) <= 2 + 3, "two that compute, prefetch, saver, autograd's"
    assert "threads: learner 2, others 1" in running[0].out.read_text()


def test_run_keeps_nothing_in_dev_shm(running):
    run, _ = running
    for process in run.survivors():
        assert "/dev/shm" not in memory_maps(process.pid), process
    assert "/memfd:" in memory_maps(run.process.pid), "else this test could not fail"


def test_every_process_dies_with_the_group_and_the_run_starts_again(running):
    """The last test of this file: it ends the run that the others look at."""
    run, children = running
    os.killpg(run.process.pid, signal.SIGKILL)
    assert run.end().returncode == -signal.SIGKILL
    until(lambda: not run.survivors(), "no process is left", limit_s=10)
    until(lambda: not any(map(is_alive, children.values())), "no worker is left", limit_s=10)
    with train(run.directory, {}) as again:
        ended = again.end()
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert len(list((run.directory / "runs").iterdir())) == 2


def test_supervisor_killed_alone_takes_its_children_along(tmp_path):
    with train(tmp_path, {**LONG, "actors.num_actors": 1}, environ={"OMP_NUM_THREADS": "3"}) as run:
        children = run.wait_training()
        assert variable(children["actor-0"].pid, "OMP_NUM_THREADS") == "3", "what the user sets wins"
        run.signal(signal.SIGKILL)
        run.end()
        until(lambda: not run.survivors(), "no process is left", limit_s=10)


SMALL_DEV_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh")


def test_run_of_more_than_200_mib_does_not_need_dev_shm(tmp_path):
    """Case M03: 64 envs x 128 steps of Atari images with 64 MiB in /dev/shm, as in a container."""
    if subprocess.run([*SMALL_DEV_SHM, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    images = {
        **toy("Still", n=100), "actors.num_actors": 1, "actors.envs_per_group": 32, "pipeline.fragment_length": 128,
        "run.total_env_steps": 8192, "model.hidden_sizes": [4], "model.kind": "mlp", "algo.ppo.epochs": 1,
        "checkpoint.every_env_steps": 10**9,
    }  # fmt: skip
    with train(tmp_path, images, prefix=SMALL_DEV_SHM) as run:
        ended = run.end().finished()
    assert ended.summary["env_steps"] >= 8192
    assert ended.stderr == ""


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_actor_memory_does_not_grow_with_an_endless_episode(tmp_path):
    """Takes 40 s: 200,000 env steps of an episode that never ends."""
    with train(tmp_path, {**LONG, **toy("Count", n=10**9), "actors.num_actors": 1}) as run:
        actor = run.wait_training()["actor-0"]
        before = actor.memory_info().rss
        until(lambda: steps(run) > 200_000, "200,000 env steps")
        assert actor.memory_info().rss - before < 5 * MIB
        run.signal(signal.SIGTERM)
        ended = run.end()
    assert ended.returncode == 143
    assert ended.summary["episodes"] == 0


def steps(run) -> int:


    return scalars(run.folder())["rollout/episodes"][-1][0]
