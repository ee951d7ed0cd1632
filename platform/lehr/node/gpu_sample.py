"""Measurements of the node's GPUs by NVIDIA's management library (NVML).

They are taken in a separate thread: a faulty driver can block a call for minutes, while the agent
must keep answering. An unknown or outdated figure is absent, never 0.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from lehr.node.gpu_inventory import GpuInfo

EVERY_S = 2.0
FRESH_S = 15.0
"""Older samples count as outdated."""


class GpuSampler:
    def __init__(
        self,
        gpus: Sequence[GpuInfo],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.uuid is not None]
        self._every_s = every_s
        self._clock = clock
        self._newest: tuple[float, list[dict[str, Any]]] | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if self._gpus:
            self._thread = threading.Thread(target=self._watch, name="gpu-samples", daemon=True)
            self._thread.start()

    def close(self, within_s: float = 1.0) -> bool:
        """Stop sampling; return False if a call to the driver still blocks its thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(within_s)
            return not self._thread.is_alive()
        return True

    def newest(self) -> list[dict[str, Any]]:
        """Return one dictionary per GPU: index, utilization, memory_used_bytes,
        temperature_celsius, power_watts.

        Empty for logical GPUs, without the package nvidia-ml-py, and while the driver does not
        answer.
        """
        newest = self._newest
        if newest is None or self._clock() - newest[0] > FRESH_S:
            return []
        return newest[1]

    def _watch(self) -> None:
        try:
            import pynvml
        except ImportError:
            print("GPU utilization is not read: pip install nvidia-ml-py", file=sys.stderr)
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            print(f"GPU utilization is not read: {error}", file=sys.stderr)
            return
        while not self._closing.is_set():
            found = sample(pynvml, self._gpus)
            self._newest = (self._clock(), found)
            self._closing.wait(self._every_s)


def sample(nvml: ModuleType, gpus: Sequence[GpuInfo]) -> list[dict[str, Any]]:
    """Return each GPU's figures; None where its driver has none, as with MIG slices."""

    def query(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    def figures(gpu: GpuInfo) -> dict[str, Any]:
        device = query(lambda: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        busy = memory = warmth = draw = None
        if device is not None:
            draw = query(lambda: nvml.nvmlDeviceGetPowerUsage(device))
            busy = query(lambda: nvml.nvmlDeviceGetUtilizationRates(device))
            # Version 2 leaves out memory reserved by the driver, as nvidia-smi does.
            memory = query(lambda: nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2))
            warmth = query(lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
        return {
            "index": gpu.index,
            "utilization": None if busy is None else busy.gpu / 100,
            "memory_used_bytes": None if memory is None else int(memory.used),
            "temperature_celsius": warmth,
            # NVML counts in milliwatts.
            "power_watts": None if draw is None else draw / 1000,
        }

    return [figures(gpu) for gpu in gpus]
