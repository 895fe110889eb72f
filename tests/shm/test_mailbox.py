"""Mailboxes in one process: requests, replies, restarts of either side."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from rltrain.shm.mailbox import Mailboxes
from tests.shm.arenas import arena

COLUMNS = ("lane", "slot", "step", "fragment_index", "required_version")


@pytest.fixture
def shared():
    created = arena(num_actors=4)
    yield created
    created.close()


@pytest.fixture
def mailboxes(shared):
    return Mailboxes(shared)


def requests(mailboxes):
    pending = mailboxes.pending()
    return list(zip(*(getattr(pending, name).tolist() for name in COLUMNS), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_mailboxes_random_operations_equal_oracle(mailboxes, seed):
    rng, is_open = random.Random(seed), {}
    for i in range(2000):
        lane = rng.randrange(8)
        if rng.random() < 0.5 and lane not in is_open:
            is_open[lane] = (lane, i % 6, i % 5, i, -1 if i % 3 else i)
            mailboxes.post(lane, i % 6, i % 5, i, None if i % 3 else i)
        elif is_open:
            assert requests(mailboxes) == list(is_open.values())
            answered = rng.sample(list(is_open), rng.randrange(1, len(is_open) + 1))
            assert mailboxes.reply(np.array(answered), i) == 0
            for lane in answered:
                del is_open[lane]
                assert mailboxes.reply_version(lane) == i
        for lane in range(8):
            assert mailboxes.wait_reply(lane, 0) == (lane not in is_open)


def test_pending_many_requests_are_oldest_first(mailboxes):
    order = [5, 0, 7, 2, 6, 1, 3, 4]
    for lane in order:
        mailboxes.post(lane, 0, 0, 0, None)
    pending = mailboxes.pending()
    assert pending.lane.tolist() == order
    assert (np.diff(pending.arrival_ns) >= 0).all()


def test_pending_after_server_restart_finds_open_requests(shared, mailboxes):
    mailboxes.post(3, 1, 4, 9, 8)
    mailboxes.pending()
    restarted = Mailboxes(shared)
    assert requests(restarted) == [(3, 1, 4, 9, 8)]
    assert restarted.reply(np.array([3]), 8) == 0
    assert mailboxes.wait_reply(3, 0)


@pytest.mark.parametrize("num_deaths", [1, 2])
def test_reply_request_of_a_dead_actor_does_not_answer_the_next_one(shared, mailboxes, num_deaths):
    server = Mailboxes(shared)
    mailboxes.post(3, 1, 4, 9, None)
    assert requests(server) == [(3, 1, 4, 9, -1)]
    for _ in range(num_deaths):
        restarted = Mailboxes(shared)
        restarted.post(3, 2, 0, 9, None)
    assert server.reply(np.array([3]), 0) == 1
    assert not restarted.wait_reply(3, 0)
    assert requests(server) == [(3, 2, 0, 9, -1)]
    assert server.reply(np.array([3]), 0) == 0
    assert restarted.wait_reply(3, 0)


def test_cancel_request_of_a_dead_actor_is_no_longer_pending(shared, mailboxes):
    mailboxes.post(3, 1, 4, 9, None)
    mailboxes.post(4, 2, 0, 9, None)
    mailboxes.pending()
    Mailboxes(shared).cancel(3)
    assert requests(mailboxes) == [(4, 2, 0, 9, -1)]
    assert mailboxes.reply(np.array([3, 4]), 0) == 1
    mailboxes.cancel(3)
    mailboxes.post(3, 1, 5, 9, None)
    assert requests(mailboxes) == [(3, 1, 5, 9, -1)]


def test_reply_twice_is_late(mailboxes):
    mailboxes.post(0, 0, 0, 0, None)
    mailboxes.pending()
    assert mailboxes.reply(np.array([0, 0]), 0) == 1


def test_post_wakes_the_sleeping_server(mailboxes):
    seen, found = mailboxes.doorbell, []
    server = threading.Thread(target=lambda: found.append(mailboxes.wait_request(seen, 30)))
    server.start()
    server.join(0.05)
    assert server.is_alive(), "the server did not sleep"
    mailboxes.post(0, 0, 0, 0, None)
    server.join(10)
    assert found == [mailboxes.doorbell]
    assert found != [seen]


def test_wait_request_post_before_the_wait_returns_at_once(mailboxes):
    seen = mailboxes.doorbell
    mailboxes.post(0, 0, 0, 0, None)
    assert mailboxes.wait_request(seen, 30) != seen


def test_reply_wakes_the_lanes_it_answers_only(shared, mailboxes):
    woken = []
    for lane in (0, 1):
        mailboxes.post(lane, 0, 0, 0, None)

    def wait(lane, timeout_s):
        if mailboxes.wait_reply(lane, timeout_s):
            woken.append(lane)

    threads = [threading.Thread(target=wait, args=(0, 0.3)), threading.Thread(target=wait, args=(1, 30))]
    for thread in threads:
        thread.start()
    threads[1].join(0.05)
    assert threads[1].is_alive(), "the actor did not sleep"
    mailboxes.pending()
    mailboxes.reply(np.array([1]), 0)
    for thread in threads:
        thread.join(10)
    assert woken == [1]


def test_live_and_progress_outlive_the_actor(shared, mailboxes):
    mailboxes.set_live(2, True)
    mailboxes.set_live(5, True)
    mailboxes.set_progress(5, 1 << 40)
    restarted = Mailboxes(shared)
    assert restarted.num_live() == 2
    assert [restarted.progress(lane) for lane in (4, 5)] == [0, 1 << 40]
    restarted.set_live(2, False)
    assert mailboxes.num_live() == 1


def test_lane_out_of_range_is_refused(mailboxes):
    with pytest.raises(IndexError, match="lane 8"):
        mailboxes.post(8, 0, 0, 0, None)
    with pytest.raises(IndexError, match="lanes"):
        mailboxes.reply(np.array([0, 8]), 0)
