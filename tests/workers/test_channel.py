"""Messages and descriptors between two ends of a channel."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from rltrain.workers.channel import Channel, ChannelClosed

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def ends():
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_channel_messages_arrive_whole_and_in_order(ends):
    ours, other = ends
    messages = [{"number": i, "text": "é" * i} for i in range(50)]
    for message in messages:
        ours.send(message)
    assert [other.recv(1)[0] for _ in messages] == messages
    assert other.recv(0) is None


def test_channel_message_larger_than_the_socket_buffer_arrives_whole(ends):
    ours, other = ends
    message = {"text": "x" * 3_000_000}
    sender = threading.Thread(target=ours.send, args=(message,))
    sender.start()
    assert other.recv(10)[0] == message
    sender.join(10)


def test_channel_recv_of_half_a_message_waits_for_the_rest(ends):
    ours, other = ends
    reader, writer = socket.socketpair()
    whole = Channel(reader)
    ours.send({"a": 1})
    content = other.sock.recv(1000)
    writer.sendall(content[:6])
    assert whole.recv(0.05) is None
    writer.sendall(content[6:])
    assert whole.recv(1)[0] == {"a": 1}
    writer.close()
    whole.close()


def test_channel_descriptors_come_with_their_message(ends):
    ours, other = ends
    reading, writing = os.pipe()
    ours.send({"has": "a pipe"}, (writing, writing))
    os.close(writing)
    message, fds = other.recv(1)
    assert message == {"has": "a pipe"}
    assert len(fds) == 2
    os.write(fds[1], b"through")
    assert os.read(reading, 100) == b"through"
    for fd in (reading, *fds):
        os.close(fd)


def test_channel_recv_after_the_peer_closed_gives_what_it_sent_then_raises(ends):
    ours, other = ends
    ours.send({"last": True})
    ours.close()
    assert other.recv(1)[0] == {"last": True}
    with pytest.raises(ChannelClosed):
        other.recv(1)
    with pytest.raises(ChannelClosed):
        other.send({"anyone": "there"})


def test_channel_two_messages_read_at_once_each_keep_their_own_descriptors(ends):
    one, other = ends
    reading, writing = os.pipe()
    one.send({"spec": 1})
    one.send({"layout": 2}, (writing,))

    first, second = other.recv(1), other.recv(1)

    assert first == ({"spec": 1}, [])
    assert second[0] == {"layout": 2}
    assert len(second[1]) == 1
    for fd in (reading, writing, *second[1]):
        os.close(fd)
