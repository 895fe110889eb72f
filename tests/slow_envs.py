"""Envs that take their time: `env.id = "tests.slow_envs:<class>"`."""

from __future__ import annotations

import time
from typing import Any

from tests.toy_envs import Count


class Late(Count):
    """Its first step takes longer than all others together.

    Args:
        first_s: what it takes, in seconds.
        n: episode length.
    """

    def __init__(self, first_s: float = 0.5, n: int = 20):
        super().__init__(n)
        self.left_s = first_s

    def step(self, action: Any):
        """Count, the first time late."""
        time.sleep(self.left_s)
        self.left_s = 0.0
        return super().step(action)
