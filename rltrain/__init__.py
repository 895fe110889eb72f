"""A workstation trainer for reinforcement learning that keeps the accelerator full and says why when it is not."""

import time as _time

STARTED_S = _time.monotonic() - _time.process_time()
"""When this process began, by CLOCK_MONOTONIC: what it has computed so far was its own start. The kernel's own time of
the start would be that of a shell which executed this program in its place."""

__version__ = "0.1.0"
