"""Fully connected layers as one autograd node: the part of a small policy where most of the update's time goes.

Same mathematics as chains of `nn.Linear` and activations, arranged so that little is computed besides the matrix
products (us per row of 64 units, one thread of an AMD EPYC, 16k rows, December 2026):

- tanh as 2 sigmoid(2x) - 1: 0.08 instead of 0.21 (absolute error below 2e-7); on CPU only.
- the weight gradient of a wide layer with few inputs as (x^T g)^T: 0.013 instead of 0.115 for 4 inputs.
- activations and their gradients in place; one node for actor and critic together instead of one for each operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_aten = torch.ops.aten


class DenseStack(nn.Module):
    """Linear layers with an activation between them.

    Args:
        sizes: widths, input first, output last; a single entry makes the identity.
        activation: `tanh`, `relu`, `elu` or `silu`.
        activate_last: whether the last layer is followed by the activation too.
    """

    def __init__(self, sizes: Sequence[int], activation: str, activate_last: bool = False):
        super().__init__()
        self.num_layers = len(sizes) - 1
        self.num_outputs = sizes[-1]
        self.activation = activation
        self.num_activations = self.num_layers if activate_last else self.num_layers - 1
        for i in range(self.num_layers):
            self.register_parameter(f"weight_{i}", nn.Parameter(torch.empty(sizes[i + 1], sizes[i])))
            self.register_parameter(f"bias_{i}", nn.Parameter(torch.zeros(sizes[i + 1])))

    def initialize(self, generator: torch.Generator, last_gain: float = 2**0.5) -> None:
        """Set orthogonal weights with gain sqrt(2), `last_gain` in the last layer, and zero biases.

        Source: Saxe et al. 2014 (arXiv:1312.6120); gains as is usual for PPO.
        """
        for i in range(self.num_layers):
            gain = last_gain if i == self.num_layers - 1 else 2**0.5
            nn.init.orthogonal_(self.get_parameter(f"weight_{i}"), gain, generator=generator)
            nn.init.zeros_(self.get_parameter(f"bias_{i}"))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, sizes[0]] to [B, sizes[-1]]."""
        return run_stacks((self,), (x,))[0] if self.num_layers else x


def run_stacks(stacks: Sequence[DenseStack], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply each stack, of one layer or more, to its own input as one autograd node.

    Args:
        stacks: the layers.
        inputs: [B, sizes[0]] for each stack; B may differ.

    Returns:
        [B, sizes[-1]] of each stack, float32, or the autocast dtype under autocast.
    """
    parameters = [p for stack in stacks for p in stack._parameters.values() if p is not None]
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        inputs, parameters = [x.to(dtype) for x in inputs], [p.to(dtype) for p in parameters]
    plan = [(stack.num_layers, stack.num_activations, stack.activation) for stack in stacks]
    return _DenseStacks.apply(plan, *inputs, *parameters)


class _DenseStacks(torch.autograd.Function):
    """The chain rule of `run_stacks`, written out."""

    @staticmethod
    def forward(ctx, plan: list[tuple[int, int, str]], *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        parameter = iter(tensors[len(plan) :])
        for (num_layers, num_activations, activation), x in zip(plan, tensors, strict=False):
            for i in range(num_layers):
                weight, bias = next(parameter), next(parameter)
                saved += (x, weight)
                if i < num_activations:
                    x, needed = _activated_linear(x, weight, bias, activation)
                    saved.append(needed)
                else:
                    x = torch.addmm(bias, x, weight.t())
            outputs.append(x)
        ctx.save_for_backward(*saved)
        ctx.plan = plan
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *output_gradients: Tensor):
        saved = list(ctx.saved_tensors)
        input_gradients: list[Tensor | None] = []
        parameter_gradients: list[Tensor] = []
        for k in reversed(range(len(ctx.plan))):
            num_layers, num_activations, activation = ctx.plan[k]
            grad = output_gradients[k]
            may_overwrite = False  # not what autograd hands in
            for i in reversed(range(num_layers)):
                if i < num_activations:
                    grad = _activation_gradient(grad, saved.pop(), activation, may_overwrite)
                weight, x = saved.pop(), saved.pop()
                few_inputs = x.shape[1] < weight.shape[0]
                parameter_gradients.append(grad.sum(0))
                parameter_gradients.append(torch.mm(x.t(), grad).t() if few_inputs else torch.mm(grad.t(), x))
                if i > 0 or ctx.needs_input_grad[1 + k]:
                    grad, may_overwrite = torch.mm(grad, weight), True
            input_gradients.append(grad if ctx.needs_input_grad[1 + k] else None)
        return None, *input_gradients[::-1], *parameter_gradients[::-1]


def _activated_linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return act(x W^T + b) and what `_activation_gradient` needs of it."""
    if activation == "tanh" and x.is_cpu:
        y = torch.addmm(bias, x, weight.t(), beta=2, alpha=2).sigmoid_().mul_(2).sub_(1)
        return y, y
    z = torch.addmm(bias, x, weight.t())
    if activation == "silu":
        return nn.functional.silu(z), z
    y = z.tanh_() if activation == "tanh" else z.relu_() if activation == "relu" else nn.functional.elu_(z)
    return y, y


def _activation_gradient(grad: Tensor, kept: Tensor, activation: str, may_overwrite: bool) -> Tensor:
    if activation == "tanh":
        if may_overwrite:
            return _aten.tanh_backward.grad_input(grad, kept, grad_input=grad)
        return _aten.tanh_backward(grad, kept)
    if activation == "relu":
        if may_overwrite:
            return _aten.threshold_backward.grad_input(grad, kept, 0, grad_input=grad)
        return _aten.threshold_backward(grad, kept, 0)
    if activation == "elu":
        return _aten.elu_backward(grad, 1, 1, 1, True, kept)
    return _aten.silu_backward(grad, kept)
