"""The counter board's rows in the arena."""

from __future__ import annotations

from rltrain.shm.counters import CounterBoard
from tests.shm.arenas import ROLES, arena


def test_rows_have_their_roles_and_do_not_overlap():
    shared = arena()
    writer, reader = CounterBoard(shared), CounterBoard(shared)
    for index, role in enumerate(ROLES):
        row = writer.row(index)
        assert row.role == role
        row.start(1000 + index)
        row.add("env_steps" if role != "inference" else "rows", index)
        if role == "actor":
            row.observe("episode_length_steps", 1e9)
    for index, role in enumerate(ROLES):
        row = reader.row(index)
        assert row.pid == 1000 + index
        assert row.state == "boot"
        assert row.get("env_steps" if role != "inference" else "rows") == index
        if role == "actor":
            assert row.histogram("episode_length_steps").tolist() == [0] * 95 + [1]
    shared.close()
