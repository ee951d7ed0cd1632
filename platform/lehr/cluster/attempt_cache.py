"""A cache of the open attempts; only those of changed runs are read again."""

from __future__ import annotations

import time
from collections.abc import Callable

from lehr.cluster.dirty_runs import DirtyRuns
from lehr.store import Change, Store
from lehr.store.tables import Attempt

WHOLE_EVERY_S = 60.0
"""Seconds after which everything is read again, in case a change was missed."""
MANY = 500
"""From this many changed runs on, one query for all is faster."""


class AttemptCache:
    """Used by the dispatcher's thread; ``changed`` may be called from any thread.

    Each write that changes what is decided on an attempt announces a change of its run. Two
    columns may be older: ``last_heartbeat_at`` and ``last_step``, which change every few seconds.
    Decisions take both from ``HeartbeatTable``.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._dirty = DirtyRuns()
        self._unheard: frozenset[str] = frozenset()
        """Runs of which no event is known: their first progress is a first sign of life."""
        self._by_run: dict[str, list[Attempt]] = {}
        self._rows: list[Attempt] = []
        self._whole_at = -WHOLE_EVERY_S

    def changed(self, change: Change) -> None:
        """Note a change of a run."""
        if not change.progress or change.id in self._unheard:
            self._dirty.add([change.id])

    def rows(self) -> list[Attempt]:
        """Return the open attempts as ``Attempts.list_open`` does, oldest first."""
        with self._dirty.taken() as dirty:
            self._refresh(dirty)
        return self._rows

    def _refresh(self, dirty: set[str]) -> None:
        whole = len(dirty) > MANY or self._clock() - self._whole_at >= WHOLE_EVERY_S
        if not whole and not dirty:
            return
        found = self._store.attempts.list_open(None if whole else sorted(dirty))
        if whole:
            self._whole_at = self._clock()
            self._by_run = {}
        for run_id in dirty:
            self._by_run.pop(run_id, None)
        for row in found:
            self._by_run.setdefault(row.run_id, []).append(row)
        rows = [row for rows in self._by_run.values() for row in rows]
        self._rows = sorted(rows, key=lambda row: (row.created_at, row.id))
        self._unheard = frozenset(row.run_id for row in rows if not row.events_applied)
