"""When the evaluator plays, and what it found last.

Owns: the env steps of the next evaluation. Called by the supervisor.
"""

from __future__ import annotations

from typing import Any

from rltrain.supervisor.fleet import Fleet


class Evaluations:
    """Asks for one evaluation at a time.

    Args:
        fleet: with or without an evaluator.
        distance: env steps between two evaluations, None for none at all: `eval.every_env_steps`.
    """

    def __init__(self, fleet: Fleet, distance: int | None):
        self.fleet, self.distance = fleet, distance
        self.latest: dict[str, Any] | None = None
        """The figures of the latest evaluation, and the `env_steps` it was asked for at."""
        self._next_at = distance or 0
        self._is_playing = False

    def ask(self, env_steps: int) -> None:
        """Ask for one if it is due and none is under way: asked meanwhile, it would play later weights as these."""
        evaluator = self.fleet.children.get("evaluator")
        is_free = evaluator is not None and evaluator.is_ready and not self._is_playing
        if not is_free or self.distance is None or env_steps < self._next_at:
            return
        self._is_playing = True
        self._next_at = (env_steps // self.distance + 1) * self.distance
        self.fleet.send(self.fleet.children["evaluator"], {"evaluate": env_steps})

    def heard(self, env_steps: int, figures: dict[str, float]) -> None:
        """Take the answer."""
        self.latest = {"env_steps": env_steps, **figures}
        self._is_playing = False

    def abandon(self) -> None:
        """The evaluator is gone; what it played is lost."""
        self._is_playing = False

    def phase(self) -> str:
        """Return what the run is doing, with the latest evaluation in words."""
        if self.latest is None:
            return "training"
        return f"training, evaluated {self.latest['eval/return_mean']:,.1f} at {self.latest['env_steps']:,}"
