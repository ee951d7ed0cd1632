"""Small tasks that a process repeats for as long as it lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

EVERY_S = 60.0
_log = logging.getLogger(__name__)


class Upkeep:
    """A thread that calls ``act`` once a minute. An error is logged, and it goes on."""

    def __init__(self, name: str, act: Callable[[], object], *, every_s: float = EVERY_S) -> None:
        self._act, self._every_s = act, every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._act()
            except Exception:  # noqa: BLE001 - logged; it is tried again
                _log.exception("%s failed", self._thread.name)
