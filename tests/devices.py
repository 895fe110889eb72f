"""Devices that tests run on: the CPU, and the first CUDA device where there is one (marker `gpu`)."""

from __future__ import annotations

import pytest
import torch

NEEDS_CUDA = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))
CUDA = pytest.param("cuda:0", id="cuda", marks=NEEDS_CUDA)
DEVICES = [pytest.param("cpu", id="cpu"), CUDA]
