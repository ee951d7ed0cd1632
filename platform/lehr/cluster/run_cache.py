"""A cache of the runs that have not ended; only changed runs are read again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from lehr.cluster import snapshot
from lehr.cluster.isolation import Isolation
from lehr.control.lifecycle import ENDED, RunState
from lehr.control.queue import Waiting
from lehr.store import Store
from lehr.store.tables import RunRow, SweepRow

WHOLE_EVERY_S = 60.0
"""Seconds after which everything is read again, in case a change was missed."""
MANY = 500
"""From this many changed runs on, one query for all is faster."""
_LIVING = frozenset(RunState) - ENDED


class RunCache:
    """Used by the dispatcher's thread; ``changed`` may be called from any thread.

    A slightly old row does no harm: the store fences every action.
    """

    def __init__(
        self, store: Store, isolation: Isolation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._isolation = isolation
        self._clock = clock
        self._guard = threading.Lock()
        self._dirty: set[str] = set()
        self._rows: dict[str, RunRow] = {}
        self._waiting: dict[str, tuple[RunRow, Waiting]] = {}
        self._sweeps: dict[str, SweepRow] = {}
        self._whole_at = -WHOLE_EVERY_S

    def changed(self, run_id: str) -> None:
        with self._guard:
            self._dirty.add(run_id)

    def refresh(self) -> None:
        with self._guard:
            dirty, self._dirty = self._dirty, set()
        if len(dirty) > MANY or self._clock() - self._whole_at > WHOLE_EVERY_S:
            self._whole_at = self._clock()
            self._rows = {run.id: run for run in self._store.runs.by_state(_LIVING)}
        else:
            for run_id in dirty:
                row = self._store.runs.get(run_id)
                if RunState(row.state).ended:
                    self._rows.pop(run_id, None)
                else:
                    self._rows[run_id] = row
        self._waiting = {i: pair for i, pair in self._waiting.items() if i in self._rows}

    def forget_waiting(self) -> None:
        """Drop cached queue entries after a change of the nodes that runs avoid."""
        with self._guard:
            self._dirty.update(list(self._waiting))

    def runs(self, states: Collection[RunState]) -> list[RunRow]:
        """Return the runs in order of submission."""
        values = {state.value for state in states}
        found = [row for row in self._rows.values() if row.state in values]
        return sorted(found, key=lambda run: run.number or 0)

    def waiting(self) -> list[Waiting]:
        """Return the queue as values for the decision."""
        found = []
        for run in self.runs({RunState.QUEUED}):
            known = self._waiting.get(run.id)
            if known is not None and known[0] is run:
                found.append(known[1])
            elif self._isolation.do(run.id, "reading what it waits for", partial(self._read, run)):
                found.append(self._waiting[run.id][1])
        return found

    def _read(self, run: RunRow) -> None:
        sweep = self._sweep(run.sweep_id) if run.sweep_id is not None else None
        self._waiting[run.id] = (run, snapshot.waiting(run, sweep, self._store))

    def _sweep(self, sweep_id: str) -> SweepRow:
        if sweep_id not in self._sweeps:
            self._sweeps[sweep_id] = self._store.sweeps.find(sweep_id)
        return self._sweeps[sweep_id]
