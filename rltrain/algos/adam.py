"""Adam over one flat vector.

`torch.optim` is not used: making an optimiser imports the compiler, one second of start-up in every run, and loops
over parameters. The arithmetic is the fused kernel beneath `torch.optim.Adam(fused=True)`, one pass over the vector;
it also divides by a gradient scale and skips an update, both given as device tensors, so nothing waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


class FlatAdam:
    """Adam without weight decay.

    Args:
        flat: float32 [P], the parameters; updated in place.
        beta1: decay of the gradient mean.
        beta2: decay of the squared gradient mean.
        eps: added to the denominator.

    Source: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1.
    """

    def __init__(self, flat: Tensor, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8):
        self.flat = flat
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.mean = torch.zeros_like(flat)
        self.mean_square = torch.zeros_like(flat)
        self.num_steps = torch.zeros((), device=flat.device)
        """Updates applied; float32 because the kernel wants it, exact up to 2**24."""

    def step(self, grad: Tensor, learning_rate: float, grad_scale: Tensor | None, skip: Tensor) -> None:
        """Apply one update.

        Args:
            grad: float32 [P]; left divided by `grad_scale`.
            learning_rate: step size.
            grad_scale: float32 scalar tensor, the gradient is divided by it; None divides by nothing.
            skip: float32 scalar tensor; 1 leaves parameters and state untouched whatever `grad` holds, 0 applies.
        """
        self.num_steps.add_(1).sub_(skip)
        torch._fused_adam_(
            [self.flat],
            [grad],
            [self.mean],
            [self.mean_square],
            [],
            [self.num_steps],
            lr=learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=grad_scale,
            found_inf=skip,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the moments and the step count."""
        return {"mean": self.mean.clone(), "mean_square": self.mean_square.clone(), "num_steps": self.num_steps.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.mean.copy_(state["mean"])
        self.mean_square.copy_(state["mean_square"])
        self.num_steps.copy_(state["num_steps"])
