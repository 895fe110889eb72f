"""Child of the mailbox process tests: an actor that asks and checks, or a server that answers with a known function."""

from __future__ import annotations

import sys

import numpy as np

from rltrain.shm.control import Control
from rltrain.shm.mailbox import Mailboxes
from rltrain.shm.ring import TrajectoryRing
from tests.shm.arenas import attach_from_arguments


def act(ring: TrajectoryRing, mailboxes: Mailboxes, control: Control, lane: int, num_requests: int) -> None:
    """Post requests; each answer must be the negative of its observation."""
    vector, logp = ring.field("obs.vector"), ring.field("behaviour_logp")
    num_steps = vector.shape[1]
    for i in range(num_requests):
        slot, step = lane, i % num_steps
        vector[slot, step] = lane * 100_000 + i
        mailboxes.post(lane, slot, step, i // num_steps, None)
        while not mailboxes.wait_reply(lane, 0.2):
            if control.stop:
                return
        assert (logp[slot, step] == -(lane * 100_000 + i)).all(), "an answer belongs to another request"
    sys.stdout.write("done\n")


def serve(ring: TrajectoryRing, mailboxes: Mailboxes, control: Control) -> None:
    """Answer all that is pending until the stop word is set."""
    num_rows = mailboxes.num_lanes * ring.schema.num_envs
    staged = {"obs.vector": np.zeros((num_rows, 4), np.float32)}
    while not control.stop:
        seen = mailboxes.doorbell
        pending = mailboxes.pending()
        if len(pending.lane) == 0:
            mailboxes.wait_request(seen, 0.2)
            continue
        ring.gather_step(["obs.vector"], pending.slot, pending.step, staged)
        rows = -staged["obs.vector"][: len(pending.lane) * ring.schema.num_envs, 0]
        ring.scatter_step(["behaviour_logp"], pending.slot, pending.step, {"behaviour_logp": rows})
        mailboxes.reply(pending.lane, 0)


def main() -> None:
    """Run as `actor LANE REQUESTS` or `server`."""
    arena, arguments = attach_from_arguments()
    ring, mailboxes, control = TrajectoryRing(arena), Mailboxes(arena), Control(arena)
    if arguments[0] == "actor":
        act(ring, mailboxes, control, int(arguments[1]), int(arguments[2]))
    else:
        serve(ring, mailboxes, control)


if __name__ == "__main__":
    main()
