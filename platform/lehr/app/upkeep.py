"""What keeps a process healthy for months: repeated small tasks, and memory given back."""

from __future__ import annotations

import ctypes
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


ARENAS = 2
"""Of glibc's malloc. A Python process has little use for more: one thread at a time runs Python."""
_M_ARENA_MAX = -8  # From glibc's malloc.h.


def limit_arenas() -> bool:
    """Let all threads share a few arenas of glibc; False with another C library. See mallopt(3).

    Without a limit there are up to eight for each core, and each keeps its own gaps between living
    blocks. Call it before threads start. It changes this process alone: trainings, which begin
    with the server's environment, keep glibc's own rule.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS))


def give_back() -> bool:
    """Return whole free pages of all of glibc's arenas; False with another C library.

    See malloc_trim(3). It took 28 ms for 45 MB, and 0.2 ms if there is nothing to return.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
