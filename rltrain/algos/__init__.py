"""Mathematics: returns, losses, one file per algorithm."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def load_algorithm(name: str) -> Callable[..., Any]:
    """Return `make_update` of `algos/<name>.py`."""
    make_update: Callable[..., Any] = importlib.import_module(f"rltrain.algos.{name}").make_update
    return make_update
