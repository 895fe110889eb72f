"""The counter board's rows in the arena."""

from __future__ import annotations

from rltrain.shm.counters import CounterBoard
from tests.runs import until
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


def test_row_of_a_dead_process_counts_the_time_until_the_next_one_as_boot():
    shared = arena()
    board = CounterBoard(shared)
    dead, supervisor = (board.row(ROLES.index("actor")) for _ in range(2))
    dead.start(1)
    dead.enter("env_step")
    supervisor.end()
    stepped = supervisor.state_ns()["env_step"]
    until(lambda: supervisor.state_ns()["boot"] > 20e6, "time passes")
    another = board.row(ROLES.index("actor"))
    another.start(2)
    another.enter("wait_action")
    assert supervisor.state == "wait_action"
    times = supervisor.state_ns()
    assert times["env_step"] == stepped
    assert times["boot"] > 20e6
    assert supervisor.num_lives == 2
    shared.close()
