"""A machine for reports of tests."""

from __future__ import annotations

RECORD = {
    "time": "2026-01-01 00:00:00 +0000", "command": "rltrain bench", "commit": "abc", "cpu": "a cpu", "usable_cores": 2,
    "memory_bytes": 2**34, "load_average": 0.5, "system": "Linux", "versions": {"python": "3.11"},
}
