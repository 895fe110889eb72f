"""Limits of control groups, both versions of them, from files like the kernel's."""

from __future__ import annotations

import psutil
import pytest

from rltrain.shm.free_memory import available_bytes

MIB = 1 << 20


def write_group(folder, limit, usage, names=("memory.max", "memory.current"), stat="inactive_file 0\n"):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, usage), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(stat)


@pytest.fixture
def own_group(tmp_path):
    path = tmp_path / "self_cgroup"
    path.write_text("0::/user/run\n")
    return path


def test_available_bytes_without_groups_is_the_machine(tmp_path, own_group):
    assert available_bytes(tmp_path, own_group) == pytest.approx(psutil.virtual_memory().available, rel=0.1)


def test_available_bytes_missing_cgroup_file_is_the_machine(tmp_path):
    assert available_bytes(tmp_path, tmp_path / "absent") > 0


def test_available_bytes_limit_of_a_parent_counts(tmp_path, own_group):
    write_group(tmp_path / "user", 100 * MIB, 30 * MIB)
    write_group(tmp_path / "user/run", "max", 10 * MIB)
    assert available_bytes(tmp_path, own_group) == 70 * MIB


def test_available_bytes_cached_files_count_as_free(tmp_path, own_group):
    write_group(tmp_path / "user/run", 100 * MIB, 90 * MIB, stat=f"anon 5\ninactive_file {20 * MIB}\n")
    assert available_bytes(tmp_path, own_group) == 30 * MIB


def test_available_bytes_over_the_limit_is_zero(tmp_path, own_group):
    write_group(tmp_path / "user", 10 * MIB, 30 * MIB)
    assert available_bytes(tmp_path, own_group) == 0


def test_available_bytes_version_one_group_counts(tmp_path):
    path = tmp_path / "self_cgroup"
    path.write_text("5:cpu,cpuacct:/other\n4:memory:/run\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    write_group(tmp_path / "memory/run", 50 * MIB, 20 * MIB, names, stat=f"total_inactive_file {MIB}\n")
    assert available_bytes(tmp_path, path) == 31 * MIB
