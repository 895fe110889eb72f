"""What a check of an environment reports: what it found, and what it is about to ask of the environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Call = Literal[
    "build", "first reset", "reset", "step", "close", "gymnasium's checker", "checker's reset", "checker's step"
]
"""What is asked of an environment's own code, which may never come back from it; the last two by gymnasium's checker,
which by itself compares, and builds another one."""
Note = Callable[[Call], None]
"""Told of each call before it is made."""
NOTE_EVERY_S = 0.1
"""How often a call that is like the one before is told to another process: an env may make a million steps a second."""


@dataclass(frozen=True)
class Finding:
    """One thing found out about an environment.

    Args:
        level: `ok`; `warning`: training works, but worse or slower than it could; `error`: training fails or is wrong.
        topic: what it is about, one word.
        message: what it means for training, why, and what to do.
    """

    level: Literal["ok", "warning", "error"]
    topic: str
    message: str
