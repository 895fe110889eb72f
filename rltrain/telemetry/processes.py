"""CPU use and memory of each process, by psutil; a process that has gone has no figures."""

from __future__ import annotations

import psutil


class ProcessTable:
    """Looks at one process for each counter row; a row's process changes when a worker is restarted.

    Args:
        num_rows: rows of the counter board.
    """

    def __init__(self, num_rows: int):
        self._processes: list[psutil.Process | None] = [None] * num_rows
        self._usage: list[tuple[float | None, int | None]] = [(None, None)] * num_rows
        self._alive = [False] * num_rows

    def refresh(self, pids: list[int]) -> None:
        """Read all processes. About 0.1 ms each.

        Args:
            pids: of each row, 0 for none.
        """
        for index, pid in enumerate(pids):
            self._usage[index], self._alive[index] = self._read(index, pid)

    def is_alive(self, index: int) -> bool:
        """Whether the row's process ran at the last refresh."""
        return self._alive[index]

    def usage(self, index: int) -> tuple[float | None, int | None]:
        """Return CPU use in percent of one core since the refresh before, and resident bytes."""
        return self._usage[index]

    def _read(self, index: int, pid: int) -> tuple[tuple[float | None, int | None], bool]:
        if pid == 0:
            return (None, None), False
        try:
            process = self._processes[index]
            is_new = False
            if process is None or process.pid != pid:
                is_new = True
                process = self._processes[index] = psutil.Process(pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return (None, None), False
                cpu_percent = process.cpu_percent()
                rss_bytes = process.memory_info().rss or None  # 0 while it is ending
            return (None if is_new else cpu_percent, rss_bytes), True
        except psutil.AccessDenied:
            return (None, None), True
        except psutil.Error:
            return (None, None), False
