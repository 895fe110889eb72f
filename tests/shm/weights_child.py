"""Child of the weight-board test: publishes versions of equal bytes as fast as it can."""

from __future__ import annotations

import numpy as np

from rltrain.shm.control import Control
from rltrain.shm.weights import WeightBoard
from tests.shm.arenas import attach_from_arguments


def main() -> None:
    """Publish until the stop word is set."""
    arena, _ = attach_from_arguments()
    board, control = WeightBoard(arena), Control(arena)
    version = 0
    while not control.stop:
        board.publish(version, np.full(board.weight_bytes, version % 251, np.uint8))
        version += 1


if __name__ == "__main__":
    main()
