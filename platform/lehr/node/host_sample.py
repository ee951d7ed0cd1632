"""Measurements of the node itself: CPU, memory, disk and network, by psutil; space for runs.

They are taken in a thread of their own: a disk of the network can block a call for minutes, while
the agent must keep answering.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

EVERY_S = 5.0
FRESH_S = 20.0
"""Older samples count as outdated."""
LEAST_FREE = 64 * 2**20
"""Bytes that must be free for a start: for records and logs. A checkpoint needs more."""
LEAST_SHARE = 0.02
"""Of a small disk, this share is enough."""


class HostSampler:
    def __init__(
        self,
        folder: str,
        *,
        publish: Callable[[dict[str, float]], None] | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        folder: on the disk that is measured; ``watch_disk`` changes it.
        publish: called with each sample, in the thread of this sampler.
        every_s: pause between two samples.
        clock: tells how old a sample is.
        """
        self._folder = folder
        self._publish = publish
        self._every_s = every_s
        self._clock = clock
        self._newest: tuple[float, dict[str, float]] | None = None
        self.storage_problem: str | None = None
        """Why runs cannot be stored in the folder now; None if they can, or if that is unknown."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="host-samples", daemon=True)
        self._thread.start()

    def watch_disk(self, folder: str) -> None:
        """Measure the disk of this folder from now on."""
        self._folder = folder

    def close(self, within_s: float = 1.0) -> bool:
        """Stop sampling; return False if a call still blocks its thread."""
        self._closing.set()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def newest(self) -> dict[str, float]:
        """Return the newest figures; empty without psutil, and while none are fresh."""
        newest = self._newest
        if newest is None or self._clock() - newest[0] > FRESH_S:
            return {}
        return newest[1]

    def _watch(self) -> None:
        try:
            import psutil
        except ImportError:
            print("the node's CPU and memory are not read: pip install psutil", file=sys.stderr)
            return
        before = None
        psutil.cpu_percent()  # The next call measures from here on.
        while not self._closing.wait(self._every_s):
            now, counted = self._clock(), counters(psutil)
            self.storage_problem = storage_problem(self._folder)
            found = sample(psutil, self._folder)
            if before is not None:
                found |= rates(before[1], counted, now - before[0])
            before = (now, counted)
            self._newest = (now, found)
            if self._publish is not None:
                self._publish(found)


def sample(psutil: Any, folder: str) -> dict[str, float]:
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
    """Return why runs cannot be stored in a folder; None if they can."""
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
