"""Cores that may be used: quotas of cgroup v1 and v2, of the process's own group and those above it; what has which."""

from __future__ import annotations

import pytest

from rltrain.config import machine
from rltrain.config.load import load


def test_cgroup_cores_v2_takes_smallest_quota_up_to_the_root(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/cpu.max").write_text("max 100000\n")
    (tmp_path / "a/cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    (tmp_path / "member").write_text("0::/a/b\n")
    assert machine.cgroup_cores(tmp_path / "member", tmp_path) == 1.5


def test_cgroup_cores_v1_reads_quota_and_period(tmp_path):
    folder = tmp_path / "cpu,cpuacct"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("300000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "member").write_text("5:memory:/x\n4:cpu,cpuacct:/docker/x\n")
    assert machine.cgroup_cores(tmp_path / "member", tmp_path) == 3.0


def test_cgroup_cores_without_quota_is_none(tmp_path):
    assert machine.cgroup_cores(tmp_path / "nothing", tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (2.5, 2), (0.5, 1), (9.0, 4)])
def test_usable_cores_is_affinity_cut_to_whole_cores_of_quota(monkeypatch, quota, cores):
    monkeypatch.setattr(machine, "cgroup_cores", lambda: quota)
    monkeypatch.setattr(machine, "affinity_cores", lambda: 4)
    assert machine.usable_cores() == cores


def test_by_physical_core_gives_one_hyperthread_of_each_core_first_among_those_allowed(tmp_path):
    for core in range(8):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        listed = f"{core % 4},{core % 4 + 4}"  # 0 and 4 are one core, 1 and 5, ...
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(listed + "\n")
    assert machine.by_physical_core(range(8), tmp_path) == list(range(8))
    assert machine.by_physical_core([0, 1, 4, 6, 7], tmp_path) == [0, 1, 6, 7, 4]
    for core in range(4):
        listed = f"{core // 2 * 2}-{core // 2 * 2 + 1}"  # 0 and 1, 2 and 3
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(listed + "\n")
    assert machine.by_physical_core({0, 1, 2, 3}, tmp_path) == [0, 2, 1, 3]


def test_by_physical_core_where_the_kernel_says_nothing_is_ascending(tmp_path):
    assert machine.by_physical_core([5, 3, 4], tmp_path) == [3, 4, 5]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["actors.num_actors=4", "learner.num_threads=1"], 3),
        (["actors.num_actors=4", "learner.num_threads=8"], 2),
        (["actors.num_actors=15", "learner.num_threads=16"], 1),
        (["actors.num_actors=4", "actors.env_threads=7"], 7),
    ],
)
def test_env_threads_are_each_actors_share_of_the_cores_that_the_learner_leaves(
    tmp_path, monkeypatch, options, expected
):
    path = tmp_path / "config.toml"
    path.write_text('[env]\nid = "CartPole-v1"\n')
    monkeypatch.setattr("rltrain.config.resolve.usable_cores", lambda: 16)
    assert load(path, options).config.actors.env_threads == expected
