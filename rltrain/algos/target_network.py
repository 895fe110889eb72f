"""Target networks: copies that follow the trained network slowly, so that targets hold still."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rltrain.algos.flat_parameters import FlatParameters


class TargetNetwork:
    """A copy of a network, called like it, without gradients.

    Args:
        network: whose parameters lie in flat memory, alone.
        parameters: float32 [P], that memory.
        is_compiled: whether the copy is to be compiled as well.

    Source: Mnih et al. 2015 (doi:10.1038/nature14236), Methods (tau = 1); Lillicrap et al. 2016 (arXiv:1509.02971),
    section 3 (tau < 1).
    """

    def __init__(self, network: nn.Module, parameters: Tensor, is_compiled: bool):
        self.followed, self.parameters = network, parameters
        self.network = copy.deepcopy(network).requires_grad_(False)
        if is_compiled:
            self.network.compile()
        self.flat = FlatParameters(self.network)
        self._buffers = list(zip(self.network.buffers(), network.buffers(), strict=True))

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Go the part `tau` of the way to the followed parameters; copy buffers."""
        self.flat.flat.lerp_(self.parameters, tau)
        for own, followed in self._buffers:
            own.copy_(followed)

    def state(self) -> Tensor:
        """Return a copy of all weights, uint8 [bytes] on the host."""
        return torch.from_numpy(self.flat.publish_view().copy())

    def load(self, state: Tensor) -> None:
        """Restore what `state` returned."""
        self.flat.load(state.cpu().numpy())
