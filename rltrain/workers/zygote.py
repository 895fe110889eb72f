"""A zygote: imports once what other processes need, then forks them.

Importing torch takes more than a second of CPU, gymnasium a third of one; learner, server and evaluator, or every
actor, would each pay it, on a small machine one after the other, and at every restart again. So there are two: `torch`
forks the processes that compute, `plain` the actors, which never load torch. A zygote never starts a thread and never
touches CUDA, so forking it is safe.

Owns: nothing but its loaded modules.
Written by, read by: nobody.
Blocks on: a request of the supervisor. Unblocked by: the supervisor.
If the peer dies: the kernel kills it. If it dies: the supervisor starts another one before the next restart.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

from rltrain.workers.channel import Channel, ChannelClosed
from rltrain.workers.child import die_with, ignore_ending_signals, name_process, run_child


def serve(channel: Channel, supervisor_pid: int) -> None:
    """Fork a child for each message; its descriptors are the child's channel, stdout and stderr."""
    while True:
        try:
            _, fds = channel.recv(None)
        except ChannelClosed:
            return
        _fork_orphan(fds, supervisor_pid, channel)
        for fd in fds:
            os.close(fd)


def _fork_orphan(fds: list[int], supervisor_pid: int, zygote_channel: Channel) -> None:
    """Fork twice, so that the child's parent is the supervisor: it is the subreaper of this tree and gets its end.

    The child must not ask for its parent before the process in between is gone: it waits for the pipe's end.
    """
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() != 0:
            os._exit(0)
        os.close(write_end)
        os.read(read_end, 1)
        os.close(read_end)
        zygote_channel.close()
        channel_fd, stdout_fd, stderr_fd = fds
        os.dup2(stdout_fd, 1)
        os.dup2(stderr_fd, 2)
        os.close(stdout_fd)
        os.close(stderr_fd)
        run_child(channel_fd, supervisor_pid)
    os.close(read_end)
    os.waitpid(between, 0)
    os.close(write_end)


def main() -> None:
    """Load what the children need, then serve. Command line: package root, channel's descriptor, pid, kind."""
    channel_fd, supervisor_pid, kind = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    die_with(supervisor_pid)
    ignore_ending_signals()
    name_process(f"zygote:{kind}")
    import rltrain.workers.actor

    if kind == "torch":
        import rltrain.workers.inference
        import rltrain.workers.learner  # noqa: F401

    gc.freeze()  # what is loaded stays shared with the children
    serve(Channel(socket.socket(fileno=channel_fd)), supervisor_pid)
    os._exit(0)
