"""Fully connected layers as one autograd node: the part of a small policy where most of the update's time goes.

On a CPU the layers run in C (`models/native_layers.py`). Elsewhere, for wide layers and under autocast they are the
same mathematics in operations of torch's, with little besides the matrix products (us per row of 64 units, one thread
of an AMD EPYC, 16k rows, December 2026):

- the weight gradient of a wide layer with few inputs as (x^T g)^T: 0.013 instead of 0.115 for 4 inputs.
- activations and their gradients in place; one node for actor and critic together instead of one for each operation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rltrain.models import native_layers
from rltrain.models.matrix_products import linear, linear_relu, product

_aten = torch.ops.aten
_Layers = list[tuple[Tensor, Tensor]]


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


def run_stacks(
    stacks: Sequence[DenseStack], inputs: Sequence[Tensor], are_frozen: bool = False
) -> tuple[Tensor, ...]:
    """Apply each stack, of one layer or more, to its own input as one autograd node.

    Args:
        stacks: the layers.
        inputs: [B, sizes[0]] for each stack; B may differ.
        are_frozen: compute gradients of the inputs only, none of the parameters.

    Returns:
        [B, sizes[-1]] of each stack, float32, or the autocast dtype under autocast.
    """
    if torch.compiler.is_compiling():  # it fuses by itself, and does not look into an autograd node of one's own
        return tuple(_traceable(stack, x, are_frozen) for stack, x in zip(stacks, inputs, strict=True))
    parameters = [p for stack in stacks for p in stack._parameters.values() if p is not None]
    device = inputs[0].device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        inputs, parameters = [x.to(dtype) for x in inputs], [p.to(dtype) for p in parameters]
    plan = [(stack.num_layers, stack.num_activations, stack.activation) for stack in stacks]
    if torch.is_grad_enabled():
        return _DenseStacks.apply(plan, are_frozen, *inputs, *parameters)
    return tuple(_forward(x, *own, is_kept=False)[0] for x, own in zip(inputs, _of_each(plan, parameters), strict=True))


def _traceable(stack: DenseStack, x: Tensor, is_frozen: bool) -> Tensor:
    for i in range(stack.num_layers):
        weight, bias = stack.get_parameter(f"weight_{i}"), stack.get_parameter(f"bias_{i}")
        x = functional.linear(x, weight.detach() if is_frozen else weight, bias.detach() if is_frozen else bias)
        if i < stack.num_activations:
            x = getattr(functional, stack.activation)(x)
    return x


class _DenseStacks(torch.autograd.Function):
    """The chain rule of `run_stacks`, written out."""

    @staticmethod
    def forward(ctx, plan: list[tuple[int, int, str]], are_frozen: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        ctx.num_saved, ctx.are_native = [], []
        for x, own in zip(tensors, _of_each(plan, tensors[len(plan) :]), strict=False):
            ctx.are_native.append(native_layers.fits(x, [weight for weight, _ in own[0]]))
            result, kept = _forward(x, *own, is_kept=True)
            of_stack = (x, *(weight for weight, _ in own[0]), result, *kept)
            saved += of_stack
            ctx.num_saved.append(len(of_stack))
            outputs.append(result)
        ctx.save_for_backward(*saved)
        ctx.plan, ctx.are_frozen = plan, are_frozen
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *output_gradients: Tensor):
        saved = iter(ctx.saved_tensors)
        input_gradients: list[Tensor | None] = []
        parameter_gradients: list[Tensor | None] = []
        for k, (num_layers, num_activations, activation) in enumerate(ctx.plan):
            x, *rest = islice(saved, ctx.num_saved[k])
            weights, result, kept = rest[:num_layers], rest[num_layers], rest[num_layers + 1 :]
            backward = native_layers.backward if ctx.are_native[k] else _backward
            of_input, of_parameters = backward(
                x, weights, num_activations, activation, result, kept, output_gradients[k],
                ctx.needs_input_grad[2 + k], not ctx.are_frozen,
            )  # fmt: skip
            input_gradients.append(of_input)
            parameter_gradients += of_parameters
        return None, None, *input_gradients, *parameter_gradients


def _of_each(plan: list[tuple[int, int, str]], parameters: Sequence[Tensor]) -> Iterator[tuple[_Layers, int, str]]:
    """Yield each stack's layers (weight, bias), and their activations."""
    parameter = iter(parameters)
    for num_layers, num_activations, activation in plan:
        yield [(next(parameter), next(parameter)) for _ in range(num_layers)], num_activations, activation


def _forward(
    x: Tensor, layers: _Layers, num_activations: int, activation: str, is_kept: bool
) -> tuple[Tensor, list[Tensor]]:
    """Apply the layers; return the last one's result, and what the gradients need: as `native_layers.forward`."""
    if native_layers.fits(x, [weight for weight, _ in layers]):
        return native_layers.forward(x, layers, num_activations, activation, is_kept)
    results: list[Tensor] = []
    sums: list[Tensor] = []
    for i, (weight, bias) in enumerate(layers):
        z, x = _layer(x, weight, bias, activation if i < num_activations else None)
        results.append(x)
        if activation == "silu" and i < num_activations:
            sums.append(z)
    return x, [*results[:-1], *sums]


def _backward(
    x: Tensor, weights: list[Tensor], num_activations: int, activation: str, result: Tensor, kept: list[Tensor],
    output_gradient: Tensor, is_input_wanted: bool, are_parameters_wanted: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradients of what `_forward` computed: as `native_layers.backward`."""
    last = len(weights) - 1
    inputs, sums = [x, *kept[:last]], kept[last:]
    grad, gradients = output_gradient, []
    for i in range(last, -1, -1):
        if i < num_activations:
            y = sums[i] if sums else result if i == last else inputs[i + 1]
            grad = _activation_gradient(grad, y, activation, may_overwrite=i < last)  # not what autograd hands in
        gradients += [grad.sum(0), _weight_gradient(inputs[i], grad)] if are_parameters_wanted else [None, None]
        if i > 0 or is_input_wanted:
            grad = product(grad, weights[i])
    return grad if is_input_wanted else None, gradients[::-1]


def _weight_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Compute g^T x, [m, n], by way of the wider one of the two."""
    return product(x.t(), grad).t() if x.shape[1] < grad.shape[1] else product(grad.t(), x)


def _layer(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> tuple[Tensor, Tensor]:
    """Compute y = act(x W^T + b); return (the sum, for silu only, else y; y)."""
    if activation == "relu":
        z = linear_relu(x, weight, bias)
    else:
        z = linear(x, weight, bias)
        if activation == "silu":
            return z, _aten.silu(z)
        if activation == "tanh":
            z.tanh_()
        elif activation == "elu":
            _aten.elu_(z)
    return z, z


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
