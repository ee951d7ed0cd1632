"""The figures of all nodes over time, in ``<home>/system``."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lehr.system_history.ring import LEVELS, Ring, RingSpan

HOST = (
    "cpu", "ram_used_bytes", "ram_bytes", "disk_used_bytes", "disk_bytes",
    "disk_read_bytes_per_s", "disk_write_bytes_per_s", "network_in_bytes_per_s",
    "network_out_bytes_per_s",
)  # fmt: skip
GPU = ("utilization", "memory_used_bytes", "power_watts", "temperature_celsius")
MOST_NODES = 2_000
"""Files that are kept; of nodes that come and go, the oldest are removed."""
_LONGEST_NAME = 150
log = logging.getLogger(__name__)


class SystemHistoryFiles:
    """Records the reports of agents, and reads them back. May be used from any thread."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "system"
        self._guard = threading.Lock()
        self._failed = False

    def record(self, news: Mapping[str, Any], at: float | None = None) -> None:
        """Record the measurements in an agent's report, if it has any. Never raises."""
        figures = figures_of(news)
        if not figures:
            return
        try:
            with self._guard:
                path = self._path(str(news["name"]))
                if not path.exists():
                    self._make_room()
                Ring(path).add(time.time() if at is None else at, figures)
            self._failed = False
        except OSError as error:
            if not self._failed:  # A full disk fails each report: once is enough.
                log.warning("measurements of %s are not kept: %s", news["name"], error)
            self._failed = True

    def read(
        self, node: str, first: float, last: float, *, points: int, now: float | None = None
    ) -> RingSpan:
        """Return a node's figures; empty columns if there are none."""
        with self._guard:
            ring = Ring(self._path(node))
            return ring.read(first, last, now=time.time() if now is None else now, points=points)

    def _path(self, node: str) -> Path:
        name = quote(node, safe="")
        if len(name) > _LONGEST_NAME:
            name = hashlib.sha256(node.encode()).hexdigest()
        return self._folder / f"{name}.ring"

    def _make_room(self) -> None:
        """Remove files whose newest row has left every ring, and the oldest beyond the limit."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted(self._folder.glob("*.ring"), key=lambda one: one.stat().st_mtime)
        too_old = time.time() - LEVELS[-1].span_s
        for number, file in enumerate(files):
            if file.stat().st_mtime < too_old or len(files) - number >= MOST_NODES:
                file.unlink(missing_ok=True)


def figures_of(news: Mapping[str, Any]) -> dict[str, float]:
    """Return the known figures of a report by column: ``cpu``, ``gpu0.utilization``, ..."""
    host = news.get("host_now")
    found = {name: host.get(name) for name in HOST} if isinstance(host, Mapping) else {}
    for gpu in news.get("gpus_now") or ():
        found |= {f"gpu{int(gpu['index'])}.{name}": gpu.get(name) for name in GPU}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
