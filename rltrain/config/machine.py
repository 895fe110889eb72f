"""How many cores this process may really use: CPU affinity and the cgroup's CPU quota, not the number of sockets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores this process may keep busy: affinity, cut to whole cores of the cgroup's quota."""
    quota = cgroup_cores()
    cores = affinity_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def affinity_cores() -> int:
    """Return the number of cores the scheduler may put this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def by_physical_core(cores: Iterable[int], topology: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """Order logical CPUs: first one of each physical core, then a second one of each that has one, and so on.

    Args:
        cores: numbers of logical CPUs; siblings that are not among them do not count.
        topology: where the kernel says which CPUs are hyperthreads of one core; one of which it says nothing is alone.
    """
    among = set(cores)

    def rank(core: int) -> int:
        return sum(other < core for other in among & _siblings(topology / f"cpu{core}/topology/thread_siblings_list"))

    return sorted(among, key=lambda core: (rank(core), core))


def _siblings(path: Path) -> set[int]:
    """The CPUs of a list such as `0,64` or `0-1`."""
    try:
        ranges = [part.partition("-") for part in path.read_text().strip().split(",")]
        return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()


def can_pin() -> bool:
    """Return whether this system keeps a process on chosen cores; macOS does not."""
    return hasattr(os, "sched_setaffinity")


def cgroup_cores(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return the smallest CPU quota of this process's cgroup and those above it, as a number of cores.

    Args:
        membership: the kernel's list of the process's cgroups.
        mount: where cgroup file systems are mounted.

    Returns:
        Cores, such as 1.5, or None without a quota.
    """
    quotas = [q for folder in _cgroup_folders(membership, mount) if (q := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _cgroup_folders(membership: Path, mount: Path) -> list[Path]:
    """Folders of the CPU controller from the process's own group up to the root, for cgroup v1 and v2.

    A container often sees its own group mounted as the root, so the root is always among them.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [mount / controllers, mount / "cpu"]
        else:
            continue
        for root in roots:
            own = root / path.lstrip("/")
            folders += [own, *(p for p in own.parents if p.is_relative_to(root))]
    return folders


def _quota_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
