"""A minibatch in parts, one after the other on each of some threads: forward and backward of rows.

Images are cut so that a part's activations stay in the cache of a core, also with one thread: the Nature CNN on 512
rows of 4 x 84 x 84 takes 488 us an env step in 7 parts and 613 at once (one thread of an AMD EPYC, PPO, one pass).

Rows depend on nothing but the weights, so a minibatch is cut into equal runs of rows, and whichever thread is free
takes the next one. Threads that share cores with actors and server then lose only what these take; torch's own threads,
which get equal shares in advance, wait for the one that was held up. The gradients are added up in the order of the
rows, so that the weights do not depend on which thread was faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from rltrain.algos.flat_parameters import FlatParameters
from rltrain.algos.precision import forward_precision

LEAST_WORK = 1 << 22
"""Rows times parameters of a part, about a millisecond: with less, starting its operations takes longer than a second
thread saves."""
CACHED_BYTES = 8 << 20
"""Most bytes of a part's observations as float32, on which the first layers' activations are about as large again."""
PARTS_PER_THREAD = 2
"""So that a thread that was held up leaves its second part to another."""
_VALUE_ROWS = 8192
"""Rows of one forward pass without gradient; bounds the memory of activations."""
_Result = TypeVar("_Result")


@dataclass
class Outputs:
    """What the model said about rows, without autograd history: [M], [M] and [R], the policy's rows being the first M.

    All float32, whatever a network's own precision.

    Args:
        log_prob: of the actions.
        entropy: of the policy.
        value: of the observations.
        backward: adds the gradients to the parameters', given those of the three.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    backward: Callable[[Tensor, Tensor, Tensor], None]


class RowParts:
    """Evaluates rows on some threads.

    Args:
        model: the network; its forward must allow calls from several threads at once.
        flat: its parameters, whose gradients are summed up.
        num_threads: that take parts.
        precision: of the forward pass.
        is_cut: whether rows may be cut into parts; False evaluates all at once.
    """

    def __init__(self, model: Any, flat: FlatParameters, num_threads: int, precision: str, is_cut: bool = True):
        self.model, self.flat, self.num_threads, self.precision = model, flat, num_threads, precision
        self.is_cut = is_cut
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._num_parameters = sum(p.numel() for p in self._parameters)
        self._pool: ThreadPoolExecutor | None = None

    def evaluate(self, obs: dict[str, Tensor], action: Tensor) -> Outputs:
        """Run the network.

        Args:
            obs: name -> [R, ...].
            action: [M, ...], of the first M <= R rows.
        """
        num_rows = len(next(iter(obs.values())))
        num_parts = self._num_parts(num_rows, len(action), _row_bytes(obs))
        cuts = [num_rows * i // num_parts for i in range(num_parts + 1)]

        def forward(i: int) -> tuple[Tensor, Tensor, Tensor]:
            rows = slice(cuts[i], cuts[i + 1])
            of_part = {name: x[rows] for name, x in obs.items()} if num_parts > 1 else obs
            actions = action[rows]
            with torch.enable_grad(), forward_precision(action.device, self.precision):
                policy, value = self.model.policy_and_value(of_part, len(actions))
            with torch.enable_grad():
                return policy.log_prob(actions).float(), policy.entropy().float(), value.float()

        parts = self._each(forward, num_parts)
        log_prob, entropy, value = (
            torch.cat([part[i].detach() for part in parts]) if num_parts > 1 else parts[0][i].detach() for i in range(3)
        )

        def backward(log_prob_grad: Tensor, entropy_grad: Tensor, value_grad: Tensor) -> None:
            if num_parts == 1:
                torch.autograd.backward(parts[0], (log_prob_grad, entropy_grad, value_grad))
                return

            def of_part(i: int) -> tuple[Tensor | None, ...]:
                rows = slice(cuts[i], cuts[i + 1])
                gradients = (log_prob_grad[rows], entropy_grad[rows], value_grad[rows])
                return torch.autograd.grad(parts[i], self._parameters, gradients, allow_unused=True)

            for gradients in self._each(of_part, num_parts):
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    if gradient is not None:
                        assert parameter.grad is not None, "it is a view of the flat gradient"
                        parameter.grad.add_(gradient)

        return Outputs(log_prob, entropy, value, backward)

    def _num_parts(self, num_rows: int, num_actions: int, row_bytes: int) -> int:
        """None so small that it does not pay, and none without a row of the policy."""
        if not self.is_cut:
            return 1
        wanted = -(-num_rows * row_bytes // CACHED_BYTES)
        if self.num_threads > 1:
            work = num_rows * self._num_parameters // LEAST_WORK
            wanted = max(wanted, min(PARTS_PER_THREAD * self.num_threads, work))
        return max(1, min(wanted, num_rows // (num_rows - num_actions + 1)))

    @torch.no_grad()
    def values(self, obs: dict[str, Tensor]) -> Tensor:
        """Compute the values [R] of all rows name -> [R, ...], without gradient, in parts of bounded size."""
        most = min(_VALUE_ROWS, max(1, CACHED_BYTES // _row_bytes(obs))) if self.is_cut else _VALUE_ROWS
        parts = {name: x.split(most) for name, x in obs.items()}

        def of_part(i: int) -> Tensor:
            with torch.no_grad(), forward_precision(self.flat.flat.device, self.precision):
                value: Tensor = self.model.value({name: x[i] for name, x in parts.items()})
            return value

        return torch.cat(self._each(of_part, len(next(iter(parts.values()))))).float()

    def _each(self, call: Callable[[int], _Result], number: int) -> list[_Result]:
        """Call with 0, 1, ... on all threads, and return the results in order."""
        if number == 1 or self.num_threads == 1:
            return [call(i) for i in range(number)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                self.num_threads - 1, "row-parts", initializer=torch.set_num_threads, initargs=(1,)
            )
        results: dict[int, _Result] = {}
        left, lock = iter(range(number)), threading.Lock()

        def take() -> None:
            while True:
                with lock:
                    i = next(left, None)
                if i is None:
                    return
                results[i] = call(i)

        waiting = [self._pool.submit(take) for _ in range(self.num_threads - 1)]
        take()
        for other in waiting:
            other.result()
        return [results[i] for i in range(number)]


def _row_bytes(obs: dict[str, Tensor]) -> int:
    """Bytes of a row of all observations as float32."""
    return sum(4 * x[:1].numel() for x in obs.values())
