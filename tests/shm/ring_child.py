"""Child of the ring tests: a writer or a reader that does its work until it is killed or the stop word is set."""

from __future__ import annotations

import sys

import numpy as np

from rltrain.shm.control import Control
from rltrain.shm.ring import FragmentMeta, TrajectoryRing
from tests.shm.arenas import attach_from_arguments


def stamp(owner: int, life: int, sequence: int) -> float:
    """A number below 2**24, exact in float32, that no two fragments of a test share."""
    return float((owner * 64 + life % 64) * 16384 + sequence % 16384)


def write(ring: TrajectoryRing, control: Control, owner: int, life: int) -> None:
    """Publish fragments whose every row carries the stamp."""
    vector, reward = ring.field("obs.vector"), ring.field("reward")
    sequence = 1
    while not control.stop:
        slot = ring.claim(owner, 0.1)
        if slot is None:
            continue
        value = stamp(owner, life, sequence)
        for step in range(vector.shape[1]):
            vector[slot, step] = value
            reward[slot, step] = -value
        assert ring.publish(slot, owner, FragmentMeta(owner, life, sequence, sequence))
        sequence += 1


def read(ring: TrajectoryRing, control: Control, owner: int) -> None:
    """Take fragments and print what they say; torn ones are printed as such."""
    vector, reward = ring.field("obs.vector"), ring.field("reward")
    while not (control.finish and ring.states()["ready"] == 0):
        slot = ring.take(owner, 0.05)
        if slot is None:
            continue
        meta = ring.meta(slot)
        value = np.float32(stamp(meta.lane, meta.fragment_index, meta.sequence))
        is_whole = (vector[slot] == value).all() and (reward[slot] == -value).all()
        sys.stdout.write(f"{meta.lane} {meta.fragment_index} {meta.sequence} {'whole' if is_whole else 'torn'}\n")
        sys.stdout.flush()  # before the release: a reader killed here leaves the fragment to be read again, not lost
        assert ring.release(slot, owner)


def main() -> None:
    """Run as `writer OWNER LIFE` or `reader OWNER`."""
    arena, arguments = attach_from_arguments()
    ring, control = TrajectoryRing(arena), Control(arena)
    if arguments[0] == "writer":
        write(ring, control, int(arguments[1]), int(arguments[2]))
    else:
        read(ring, control, int(arguments[1]))


if __name__ == "__main__":
    main()
