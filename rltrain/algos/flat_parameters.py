"""All parameters and buffers of a model in one block of bytes, and all gradients in one vector.

One vector makes the optimiser, the gradient norm and the zeroing of gradients one operation each, whatever the number
of layers, and a weight publication one copy.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor, nn

_ALIGNMENT_BYTES = 64


class FlatParameters:
    """Moves a model's parameters, gradients and persistent buffers into flat memory, where they stay.

    Layout: the float32 parameters in `named_parameters` order, then the persistent buffers in `named_buffers` order,
    each in its own dtype; every tensor begins at a multiple of 64 bytes. Bytes between tensors are zero.
    Do not move or convert the model afterwards (`.to`, `.half`): its tensors would leave the flat memory.

    Args:
        model: on its final device, parameters float32.
    """

    def __init__(self, model: nn.Module):
        parameters = list(model.named_parameters())
        buffers = _persistent_buffers(model)
        wrong = [f"{name}: {p.dtype}" for name, p in parameters if p.dtype != torch.float32]
        if wrong:
            raise ValueError(f"parameters must be float32: {', '.join(wrong)}")
        offsets, parameter_bytes = _offsets([p.data for _, p in parameters], 0)
        buffer_offsets, self.weight_bytes = _offsets([b for _, _, b in buffers], parameter_bytes)
        device = parameters[0][1].device
        self._bytes = torch.zeros(self.weight_bytes, dtype=torch.uint8, device=device)
        self.flat = self._bytes[:parameter_bytes].view(torch.float32)
        """float32 [P], all parameters; the zeros between them included."""
        self.grad = torch.zeros_like(self.flat)
        """float32 [P], their gradients: every `parameter.grad` is a view of it."""
        for (_, parameter), offset in zip(parameters, offsets, strict=True):
            view = _view(self._bytes, offset, parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            first = offset // 4
            parameter.grad = self.grad[first : first + parameter.numel()].view(parameter.shape)
        for (owner, name, buffer), offset in zip(buffers, buffer_offsets, strict=True):
            view = _view(self._bytes, offset, buffer)
            view.copy_(buffer)
            owner._buffers[name] = view
        if device.type == "cpu":
            self._host = self._bytes
        else:
            self._host = torch.zeros(self.weight_bytes, dtype=torch.uint8, pin_memory=True)
        self.host_bytes = self._host.numpy()
        """uint8 [weight_bytes] on the host: on the CPU the weights themselves, elsewhere a pinned copy that
        `publish_view` fills and `load` may read from."""

    def publish_view(self) -> np.ndarray:
        """Return the weights as uint8 [weight_bytes] on the host, valid until the next update or call.

        On the CPU a view; elsewhere one copy into pinned memory, for which only the current stream is waited.
        """
        if self._host is not self._bytes:
            self._host.copy_(self._bytes)
        return self.host_bytes

    def load(self, weights: np.ndarray, non_blocking: bool = False) -> None:
        """Set parameters and buffers in place from uint8 [weight_bytes] of the same model, in one copy.

        Args:
            weights: copied into `host_bytes` unless that is what it is.
            non_blocking: do not wait for the copy to the device; `host_bytes` must stay as it is until it has ended
                on the current stream.
        """
        if weights.size != self.weight_bytes:
            raise ValueError(f"{weights.size} bytes of weights for a model of {self.weight_bytes} bytes")
        if weights.ctypes.data != self.host_bytes.ctypes.data:
            np.copyto(self.host_bytes, weights)
        if self._host is not self._bytes:
            self._bytes.copy_(self._host, non_blocking=non_blocking)

    def hash(self) -> str:
        """Return the SHA-256 of the bytes, in hex."""
        return hashlib.sha256(self.publish_view().data).hexdigest()


def _persistent_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    found = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found.append((module, name, buffer))
    return found


def _offsets(tensors: list[Tensor], start: int) -> tuple[list[int], int]:
    offsets = []
    for tensor in tensors:
        offsets.append(start)
        size = tensor.numel() * tensor.element_size()
        start += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, start


def _view(flat: Tensor, offset: int, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return flat[offset : offset + size].view(like.dtype).view(like.shape)
