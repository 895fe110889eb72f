from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from rltrain.telemetry.gpu import GpuMonitor, GpuSample


class FakeNvml:
    """NVML of one GPU that refuses what `refused` names."""

    NVMLError = pynvml.NVMLError

    def __init__(self, *refused: str):
        self.refused, self.opened = refused, 0

    def __getattr__(self, name):
        answers = {
            "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetName": "GPU X", "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=40, memory=3),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**30, total=2**34),
            "nvmlDeviceGetPowerUsage": 123_400, "nvmlDeviceGetEnforcedPowerLimit": 300_000,
        }

        def ask(*_):
            self.opened += name == "nvmlInit"
            if name in self.refused:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answers[name]

        return ask


def test_gpu_monitor_reads_all_figures_and_opens_the_driver_once():
    nvml = FakeNvml()
    monitor = GpuMonitor(nvml)
    assert nvml.opened == 0
    assert monitor.read() == monitor.read() == (GpuSample(0, "GPU X", 40.0, 2**30, 2**34, 123.4, 300.0, "GPU-1"),)
    assert nvml.opened == 1


def test_gpu_monitor_figure_that_is_not_supported_is_none():
    refused = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit")
    assert GpuMonitor(FakeNvml(*refused)).read() == (GpuSample(0, "GPU X", None, 2**30, 2**34, None, None, "GPU-1"),)


def test_gpu_monitor_without_a_driver_is_empty():
    assert GpuMonitor(FakeNvml("nvmlInit")).read() == ()


def test_gpu_monitor_real_library_agrees_with_the_driver():
    try:
        pynvml.nvmlInit()
        expected = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        expected = 0
    samples = GpuMonitor().read()
    assert len(samples) == expected
    assert [sample.index for sample in samples] == list(range(expected))


def test_gpu_monitor_closed_reads_nothing():
    monitor = GpuMonitor(FakeNvml())
    monitor.read()
    monitor.close()
    assert monitor.read() == ()


@pytest.mark.parametrize("name", [b"GPU \xff", None])
def test_gpu_monitor_odd_name_is_still_text(name):
    nvml = FakeNvml()
    nvml.nvmlDeviceGetName = lambda handle: name
    assert GpuMonitor(nvml).read()[0].name.startswith("GPU")
