"""How much memory this process may still use: the machine's, or its control group's where that is less.

Owns: nothing; reads what the kernel says. Called by the supervisor before it creates the arena.
"""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


def available_bytes(cgroup_root: Path = CGROUP_ROOT, self_cgroup: Path = SELF_CGROUP) -> int:
    """Return the bytes that can still be allocated before something is killed or swapped.

    Args:
        cgroup_root: where the control groups are mounted.
        self_cgroup: the file that names this process's control group.
    """
    rooms = [psutil.virtual_memory().available]
    for folder in _own_groups(cgroup_root, self_cgroup):
        rooms += _room(folder, "memory.max", "memory.current")
        rooms += _room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return max(0, min(rooms))


def _own_groups(root: Path, self_cgroup: Path) -> list[Path]:
    """The process's groups (v2, or v1's memory controller) with their parents: every limit above applies too."""
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        lines = []
    folders = [root, root / "memory"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = root / "memory" if controllers else root
        for part in Path(path.lstrip("/")).parts:
            folder = folder / part
            folders.append(folder)
    return folders


def _room(folder: Path, limit_file: str, usage_file: str) -> list[int]:
    """The group's limit minus its use, or nothing when it has no limit. Cached file pages can be given up."""
    try:
        limit = (folder / limit_file).read_text().strip()
        if limit == "max":
            return []
        return [int(limit) - int((folder / usage_file).read_text()) + _reclaimable(folder)]
    except (OSError, ValueError):
        return []


def _reclaimable(folder: Path) -> int:
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0
