"""Actors and a server in processes of their own; the server is killed at random moments."""

from __future__ import annotations

import random

import pytest

from rltrain.shm.control import Control
from rltrain.shm.mailbox import Mailboxes
from tests.shm.arenas import arena, start_child

CHILD = "tests.shm.mailbox_child"


def run_with_kills(num_requests: int, num_kills: int) -> None:
    """Let four actors ask while the server dies again and again; every answer must be right."""
    shared = arena(num_slots=4)
    control, mailboxes, rng = Control(shared), Mailboxes(shared), random.Random(0)
    actors = [start_child(CHILD, shared, "actor", lane, num_requests) for lane in range(4)]
    server = start_child(CHILD, shared, "server")
    try:
        for _ in range(num_kills):
            seen = mailboxes.doorbell
            while mailboxes.doorbell - seen < rng.randrange(50, 2000):
                assert mailboxes.wait_request(mailboxes.doorbell, 10)
            server.kill()
            server.communicate(timeout=10)
            server = start_child(CHILD, shared, "server")
        for actor in actors:
            assert actor.communicate(timeout=60)[0] == "done\n"
            assert actor.returncode == 0
    finally:
        control.stop = True
        for child in (*actors, server):
            child.communicate(timeout=10)
        shared.close()


@pytest.mark.timeout(60)
def test_server_killed_at_random_every_request_is_answered_right():
    run_with_kills(num_requests=5000, num_kills=4)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_server_killed_many_times_every_request_is_answered_right():
    """About a minute."""
    run_with_kills(num_requests=100_000, num_kills=60)
