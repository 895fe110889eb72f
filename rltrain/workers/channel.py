"""Messages between the supervisor and one child: JSON with file descriptors, for boot and for rare events.

Owns: one end of a Unix stream socket.
Written by: both ends, one message at a time. Read by: both ends.
Blocks on: `recv` without a limit; `send` when the peer has not read about 200 KiB. Unblocked by: the peer.
If the peer dies: `recv` and `send` raise `ChannelClosed`.

The data path (observations, actions, fragments, weights) never comes through here.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import overload

_HEADER = struct.Struct("<II")  # bytes of the body, number of descriptors
_MAX_FDS = 8


class ChannelClosed(Exception):
    """The other end is gone."""


class Channel:
    """One end of a connection.

    Args:
        sock: a connected Unix stream socket; the channel owns it.
    """

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self._buffer = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return the supervisor's end, and the socket for the child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self.sock.fileno()

    def send(self, message: dict, fds: tuple[int, ...] = ()) -> None:
        """Send a message and duplicates of `fds`.

        Raises:
            ChannelClosed: the peer is gone.
        """
        body = json.dumps(message).encode()
        data = _HEADER.pack(len(body), len(fds)) + body
        try:
            sent = socket.send_fds(self.sock, [data], list(fds)) if fds else 0
            self.sock.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error

    @overload
    def recv(self, timeout_s: None) -> tuple[dict, list[int]]: ...

    @overload
    def recv(self, timeout_s: float) -> tuple[dict, list[int]] | None: ...

    def recv(self, timeout_s: float | None) -> tuple[dict, list[int]] | None:
        """Return the next message and its descriptors; the caller owns them.

        Args:
            timeout_s: longest wait; None waits for ever, 0 looks once.

        Returns:
            None when no whole message came in time.

        Raises:
            ChannelClosed: the peer is gone and every message was read.
        """
        while True:
            taken = self._take()
            if taken is not None:
                return taken
            if timeout_s is not None and not select.select([self.sock], [], [], timeout_s)[0]:
                return None
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, _MAX_FDS)
            except ConnectionResetError as error:
                raise ChannelClosed from error
            if not data:
                raise ChannelClosed
            self._buffer += data
            self._fds += fds

    def _take(self) -> tuple[dict, list[int]] | None:
        """Cut a whole message off the buffer. One read may bring several, so each says how many descriptors it has."""
        if len(self._buffer) < _HEADER.size:
            return None
        num_bytes, num_fds = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + num_bytes
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        fds, self._fds = self._fds[:num_fds], self._fds[num_fds:]
        return json.loads(body), fds

    def close(self) -> None:
        """Close this end."""
        self.sock.close()
