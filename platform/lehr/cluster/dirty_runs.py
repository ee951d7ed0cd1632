"""Ids of runs that changed and were not read again yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class DirtyRuns:
    """Added from any thread, taken by one."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ids: set[str] = set()

    def add(self, run_ids: Iterable[str]) -> None:
        with self._guard:
            self._ids.update(run_ids)

    @contextmanager
    def taken(self) -> Iterator[set[str]]:
        """Take all of them; they are put back if the block raises."""
        with self._guard:
            taken, self._ids = self._ids, set()
        try:
            yield taken
        except BaseException:
            self.add(taken)
            raise
