"""Measurements of a node: its GPUs by NVIDIA's management library (NVML); CPU, memory, disk and
network by psutil; space for runs.

They are taken in threads of their own: a faulty driver, or a disk of the network, can block a call
for minutes, while the agent must keep answering. An unknown or outdated figure is absent, never 0.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Generic, TypeVar

from lehr.node.gpu_inventory import GpuInfo
from lehr_trainer.extras import install

GPUS_EVERY_S = 2.0
HOST_EVERY_S = 5.0
FRESH_S = 20.0  # Older samples count as outdated.
LEAST_FREE = 64 * 2**20
"""Bytes that must be free for a start: for records and logs. A checkpoint needs more."""
LEAST_SHARE = 0.02  # Of a small disk, this share is enough.
Figures = TypeVar("Figures")


class Sampler(Generic[Figures]):
    """Takes a sample again and again, in a thread of its own."""

    def __init__(
        self, sample: Iterator[Figures], none: Figures, every_s: float, clock: Callable[[], float]
    ) -> None:
        """``sample`` yields the next one. ``none``: what counts while there is no fresh one."""
        self._sample = sample
        self._none = none
        self._every_s = every_s
        self._clock = clock
        self._newest: tuple[float, Figures] | None = None
        self._closing = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="samples", daemon=True)
        self.thread.start()

    def newest(self) -> Figures:
        newest = self._newest
        if newest is None or self._clock() - newest[0] > FRESH_S:
            return self._none
        return newest[1]

    def close(self, within_s: float = 1.0) -> bool:
        """Stop sampling; return False if a call still blocks its thread."""
        self._closing.set()
        self.thread.join(within_s)
        return not self.thread.is_alive()

    def _watch(self) -> None:
        for figures in self._sample:
            self._newest = (self._clock(), figures)
            if self._closing.wait(self._every_s):
                return


class GpuSampler(Sampler[list[dict[str, Any]]]):
    """Of each GPU: index, utilization, memory_used_bytes, temperature_celsius, power_watts,
    clock_mhz.

    Empty for logical GPUs, without the package nvidia-ml-py, and while the driver does not answer.
    """

    def __init__(
        self,
        gpus: Sequence[GpuInfo],
        *,
        every_s: float = GPUS_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.uuid is not None]
        super().__init__(self._samples(), [], every_s, clock)

    def _samples(self) -> Iterator[list[dict[str, Any]]]:
        if not self._gpus:
            return
        try:
            import pynvml
        except ImportError:
            print(f"GPU utilization is not read: {install('nvidia-ml-py')}", file=sys.stderr)
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            print(f"GPU utilization is not read: {error}", file=sys.stderr)
            return
        while True:
            yield gpu_figures(pynvml, self._gpus)


class HostSampler(Sampler[dict[str, float]]):
    """Empty without psutil."""

    def __init__(
        self,
        folder: str,
        *,
        publish: Callable[[dict[str, float]], None] | None = None,
        every_s: float = HOST_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``folder``: on the disk that is measured. ``publish`` is called with each sample, in the
        thread of this sampler.
        """
        self._folder = folder
        self._publish = publish
        self.storage_problem: str | None = None
        """Why runs cannot be stored in the folder now; None if they can, or if that is unknown."""
        super().__init__(self._samples(), {}, every_s, clock)

    def watch_disk(self, folder: str) -> None:
        """Measure the disk of this folder from now on."""
        self._folder = folder

    def _samples(self) -> Iterator[dict[str, float]]:
        try:
            import psutil
        except ImportError:
            print(f"CPU and memory of the node are not read: {install('psutil')}", file=sys.stderr)
            return
        before = None
        psutil.cpu_percent()  # The next call measures from here on.
        while not self._closing.wait(self._every_s if before is None else 0.0):
            now, counted = self._clock(), counters(psutil)
            self.storage_problem = storage_problem(self._folder)
            figures = host_figures(psutil, self._folder)
            if before is not None:
                figures |= rates(before[1], counted, now - before[0])
            before = (now, counted)
            if self._publish is not None:
                self._publish(figures)
            yield figures


def gpu_figures(nvml: ModuleType, gpus: Sequence[GpuInfo]) -> list[dict[str, Any]]:
    """Return each GPU's figures; None where its driver has none, as with MIG slices."""

    def query(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    def figures(gpu: GpuInfo) -> dict[str, Any]:
        device = query(lambda: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        busy = memory = warmth = draw = clock = None
        if device is not None:
            clock = query(lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))
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
            "clock_mhz": clock,
        }

    return [figures(gpu) for gpu in gpus]


def host_figures(psutil: Any, folder: str) -> dict[str, float]:
    """Return the current figures; those that the system does not give are absent."""
    found: dict[str, float] = {"cpu_utilization": psutil.cpu_percent() / 100}
    memory = psutil.virtual_memory()
    found |= {"ram_used_bytes": memory.total - memory.available, "ram_bytes": memory.total}
    try:
        disk = psutil.disk_usage(folder)
    except OSError:
        return found
    return found | {"disk_used_bytes": disk.used, "disk_bytes": disk.total}


def storage_problem(folder: str) -> str | None:
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"{folder} cannot be used ({error.strerror}): is its disk or file server there?"
    free = disk.f_bavail * disk.f_frsize
    need = min(LEAST_FREE, LEAST_SHARE * disk.f_blocks * disk.f_frsize)
    if free >= need:
        return None
    return f"no space for runs: {folder} has {free / 1e6:.0f} MB free, needs {need / 1e6:.0f} MB"


def counters(psutil: Any) -> dict[str, float]:
    """Return the bytes read, written, received and sent since the node started."""
    found: dict[str, float] = {}
    disk = psutil.disk_io_counters()
    if disk is not None:
        found |= {"disk_read": disk.read_bytes, "disk_write": disk.write_bytes}
    cards = psutil.net_io_counters(pernic=True)
    # What processes of the node send to each other is no network.
    real = [card for name, card in cards.items() if name != "lo"]
    if real:
        found["network_in"] = sum(card.bytes_recv for card in real)
        found["network_out"] = sum(card.bytes_sent for card in real)
    return found


def rates(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Return bytes per second; a counter that went back, as after a reset, has none."""
    return {
        f"{name}_bytes_per_s": (after[name] - before[name]) / seconds
        for name in after
        if name in before and after[name] >= before[name] and seconds > 0
    }
