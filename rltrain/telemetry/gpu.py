"""What NVML says about the NVIDIA GPUs of this machine; a figure that it does not give is None.

`utilisation` there means that some kernel was resident, not that the GPU was full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuSample:
    """One GPU at one moment; None where the driver gives no figure."""

    index: int
    name: str
    utilisation_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    power_limit_w: float | None
    uuid: str | None = None
    """As in `GPU-1234...`."""


class GpuMonitor:
    """Reads all GPUs. The driver is opened at the first read; without one every read is empty.

    Args:
        nvml: the NVML module; None imports `pynvml` at the first read.
    """

    def __init__(self, nvml: Any = None):
        self._nvml = nvml
        self._handles: list[tuple[int, str, Any]] | None = None

    def read(self) -> tuple[GpuSample, ...]:
        """Return one sample for each GPU, in NVML's order."""
        if self._handles is None:
            self._handles = self._open()
        return tuple(self._sample(*handle) for handle in self._handles)

    def close(self) -> None:
        """Give the driver back; later reads are empty."""
        if self._handles:
            self._ask(self._nvml.nvmlShutdown)
        self._handles = []

    def _open(self) -> list[tuple[int, str, Any]]:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except ImportError:
            return []
        except self._nvml.NVMLError as error:
            log.info("no NVIDIA GPU figures: %s", error)
            return []
        return [(i, self._name(handle), handle) for i, handle in enumerate(handles)]

    def _name(self, handle: Any) -> str:
        return self._text(self._nvml.nvmlDeviceGetName, handle) or "GPU"

    def _text(self, question: Callable[..., Any], handle: Any) -> str | None:
        """The answer as text: older versions of the module give bytes."""
        text = self._ask(question, handle)
        return text.decode(errors="replace") if isinstance(text, bytes) else text

    def _sample(self, index: int, name: str, handle: Any) -> GpuSample:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return GpuSample(
            index=index,
            name=name,
            utilisation_percent=None if rates is None else float(rates.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            uuid=self._text(nvml.nvmlDeviceGetUUID, handle),
        )

    def _ask(self, question: Callable[..., Any], *args: Any) -> Any:
        """The answer, or None: not every GPU answers every question, and a GPU may fall off the bus."""
        try:
            return question(*args)
        except self._nvml.NVMLError:
            return None
