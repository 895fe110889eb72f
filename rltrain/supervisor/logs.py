"""Logs of the child processes: bounded files, filled from pipes without ever waiting for a child.

Owns: the files in `logs` of the run folder, and the reading ends of the children's output pipes.
Written by: the supervisor's loop, which calls `OutputPump.poll`.
Read by: the supervisor (last lines, for a death report) and people.
Blocks on: the disk only. If a child dies: its pipe is drained to the end and closed.
If the supervisor dies: the pipes break, and the children end with it.
"""

from __future__ import annotations

import logging
import os
import selectors
from collections import deque
from pathlib import Path

TAIL_LINES = 40
LONGEST_TAIL_LINE_BYTES = 4096
READ_BYTES = 65536
EARLY_BYTES = 1 << 17
BYTES_PER_POLL = 1 << 20
"""Most that one poll reads from one pipe: a child that prints without end cannot hold up the supervisor's loop."""


class BoundedLog:
    """A log file that drops its older half when it grows too large.

    A write that fails (full disk, quota) never raises: the bytes are counted in `lost_bytes`, and later writes go on
    trying. The last lines stay in memory, whatever happens to the file.

    Args:
        max_bytes: largest size of the file.

    What is written before `open` is kept, its newest 128 KiB, and goes into the file then.

    Concurrency: for one thread.
    """

    def __init__(self, max_bytes: int):
        self.path: Path | None = None
        self.max_bytes = max_bytes
        self.lost_bytes = 0
        self.num_lines = 0
        """Whole lines written so far."""
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._unfinished = b""
        self._early = b""
        self._fd: int | None = None
        self._size = 0

    def open(self, path: Path) -> None:
        """Write to this file from now on; it is appended to when it exists, as at a resumed run."""
        self.path = Path(path)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            self.lost_bytes += len(self._early)
            return
        self._size = os.fstat(self._fd).st_size
        early, self._early = self._early, b""
        self._append(early)

    def write(self, content: bytes) -> None:
        """Append bytes as they came from a pipe; they need not end at a line's end."""
        self._remember(content)
        if self._fd is None:
            self._early = (self._early + content)[-EARLY_BYTES:]
        else:
            self._append(content)

    def _append(self, content: bytes) -> None:
        assert self._fd is not None, "written only once the file is open"
        content = content[-(self.max_bytes // 2) :]
        written = 0
        try:
            if self._size + len(content) > self.max_bytes:
                self._drop_older_half(len(content))
            while written < len(content):
                count = os.write(self._fd, content[written:])
                written += count
                self._size += count
        except OSError:
            self.lost_bytes += len(content) - written

    def tail(self, num_lines: int) -> list[str]:
        """Return the last lines, at most 40, the unfinished one included; undecodable bytes become U+FFFD."""
        lines = [*self._lines, self._unfinished] if self._unfinished else list(self._lines)
        return [line.decode(errors="replace") for line in lines[max(0, len(lines) - num_lines) :]]

    def close(self) -> None:
        """Close the file; the tail stays readable."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _remember(self, content: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + content).split(b"\n")
        self.num_lines += len(lines)
        self._lines.extend(line[:LONGEST_TAIL_LINE_BYTES].rstrip(b"\r") for line in lines[-TAIL_LINES:])
        self._unfinished = self._unfinished[-LONGEST_TAIL_LINE_BYTES:]

    def _drop_older_half(self, coming_bytes: int) -> None:
        """Keep the newest whole lines, at most half of the largest size, in the same file."""
        assert self._fd is not None, "written only once the file is open"
        keep = max(0, min(self._size, self.max_bytes // 2 - coming_bytes))
        kept = os.pread(self._fd, keep, self._size - keep)
        if keep < self._size:
            kept = kept.partition(b"\n")[2]
        marker = b"[%d bytes of older output were dropped here]\n" % (self._size - len(kept))
        os.ftruncate(self._fd, 0)
        self._size = 0
        self._size = os.write(self._fd, marker + kept)


class LogHandler(logging.Handler):
    """Sends this process's own log records to a bounded log, which no full disk can make fail."""

    def __init__(self, log: BoundedLog):
        super().__init__()
        self._log = log
        self.setFormatter(logging.Formatter("%(asctime)s supervisor %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log.write(self.format(record).encode(errors="replace") + b"\n")


class OutputPump:
    """Copies the output of all children into their logs, when asked to.

    Concurrency: for one thread; `poll` never waits for a child.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, log: BoundedLog) -> None:
        """Take over the reading end of a pipe; it is closed at its end of file, or by `close`."""
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, log)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output, for another selector."""
        return self._selector.fileno()

    def poll(self) -> int:
        """Copy what is there, at most 1 MiB per pipe.

        Returns:
            Number of pipes still open.
        """
        for key, _ in self._selector.select(timeout=0):
            self._drain(key.fd, key.data)
        return len(self._selector.get_map())

    def close(self) -> None:
        """Copy what is still there, at most 1 MiB per pipe, and close all pipes; the logs stay open."""
        self.poll()
        for key in list(self._selector.get_map().values()):
            self._close(key.fd)
        self._selector.close()

    def _drain(self, fd: int, log: BoundedLog) -> None:
        copied = 0
        while copied < BYTES_PER_POLL:
            try:
                content = os.read(fd, READ_BYTES)
            except BlockingIOError:
                return
            if not content:
                self._close(fd)
                return
            log.write(content)
            copied += len(content)

    def _close(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)
