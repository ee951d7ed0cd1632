"""Caches of unended runs and open attempts; only what changed is read again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import cast

from lehr.cluster.exits import nodes_to_avoid
from lehr.cluster.isolation import Isolation, Noted
from lehr.cluster.run_values import can_save, rank_in_queue, request_message, saved
from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.control.pending_reasons import paused_after, waits_for_trunk
from lehr.control.queue_entries import Waiting
from lehr.control.resources import Need
from lehr.control.retries import pause_s
from lehr.control.saved_points import Rewound, point_to_resume
from lehr.control.snapshot import OpenRun
from lehr.control.step import Subject
from lehr.store import Change, Store
from lehr.store.records.run_rows import shown_run
from lehr.store.tables import Attempt, CheckpointRow, RunRow, SweepRow

MANY = 500  # From this many changed runs on, one query for all is faster.
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
        self._dirty = Noted()
        self._rows: dict[str, RunRow] = {}
        self._open: dict[str, tuple[RunRow, OpenRun, float]] = {}
        """Each with the time at which it must be read again."""
        self._renew_at = math.inf
        self._values: list[OpenRun] | None = None
        """What ``open_runs`` returns; None after a change."""
        self._sweeps: dict[str, SweepRow] = {}
        self._slots: dict[str, int] = {}
        self._is_new = True

    def changed(self, run_id: str) -> None:
        self._dirty.add([run_id])

    def refresh(self) -> None:
        with self._dirty.taken() as dirty:
            self._refresh(dirty)

    def _refresh(self, dirty: set[str]) -> None:
        if self._is_new or len(dirty) > MANY:
            self._rows = {run.id: run for run in self._store.runs.by_state(_LIVING)}
            self._is_new = False
            self._slots.clear()
        elif dirty:
            self._read_again(dirty)
        else:
            return
        self._values = None
        self._open = {i: pair for i, pair in self._open.items() if i in self._rows}
        live = {row.sweep_id for row in self._rows.values()}
        self._sweeps = {i: sweep for i, sweep in self._sweeps.items() if i in live}
        self._slots = {i: slot for i, slot in self._slots.items() if i in live}

    def _read_again(self, run_ids: Collection[str]) -> None:
        for row in self._store.runs.by_ids(run_ids):
            if RunState(row.state).ended:
                self._rows.pop(row.id, None)
                self._slots.pop(row.sweep_id or "", None)
            else:
                self._rows[row.id] = row

    def forget_waiting(self) -> None:
        """Drop cached queue entries after a change of the nodes that runs avoid."""
        self._dirty.add([i for i, (_, run, _) in list(self._open.items()) if run.waiting])

    def rows(self, states: Collection[RunState]) -> list[RunRow]:
        """Return the rows of the runs in these states, in order of submission."""
        values = {state.value for state in states}
        found = [row for row in self._rows.values() if row.state in values]
        return sorted(found, key=lambda run: run.number or 0)

    def forked(self) -> set[str | None]:
        """Return the ids of the runs that a run which has not ended was forked from."""
        return {row.forked_from for row in self._rows.values()}

    def open_runs(self) -> list[OpenRun]:
        """Return all runs that have not ended, in order of submission, as values."""
        now = self._clock()
        if self._values is not None and now < self._renew_at:
            return self._values
        found = []
        rows = self.rows(_LIVING)
        for row in rows:
            known = self._open.get(row.id)
            if known is not None and known[0] is row and now < known[2]:
                found.append(known[1])
                continue
            read = partial(self._read, row)
            if self._isolation.do(Subject("run", row.id), "reading it", read):
                found.append(self._open[row.id][1])
        self._renew_at = min((until for _, _, until in self._open.values()), default=math.inf)
        if len(found) == len(rows):  # Those that could not be read are tried again.
            self._values = found
        return found

    def waiting_in_s(self) -> float | None:
        """Return ``Snapshot.waiting_in_s``."""
        left = self._renew_at - self._clock()
        return max(0.0, left) if math.isfinite(left) else None

    def slots(self, waiting: Iterable[Waiting]) -> dict[str, int]:
        """Return ``Snapshot.slots`` of the sweeps of these runs."""
        for run in waiting:
            sweep_id = run.sweep_id
            if sweep_id is None or run.max_concurrent is None or sweep_id in self._slots:
                continue
            read = partial(self._read_slot, sweep_id)
            self._isolation.do(Subject("sweep", sweep_id), "reading its last end", read)
        return dict(self._slots)

    def _read_slot(self, sweep_id: str) -> None:
        self._slots[sweep_id] = self._store.sweeps.newest_run_at_last_end(sweep_id)

    def _read(self, row: RunRow) -> None:
        state, desired = RunState(row.state), Desired(row.desired)
        requested = desired is not Desired.RUN or state is RunState.PAUSED
        waiting, left = self._waiting(row) if state is RunState.QUEUED else (None, math.inf)
        run = OpenRun(
            id=row.id,
            state=state,
            desired=desired,
            attempt=row.attempt,
            time_limit_s=row.stored.time_limit_s,
            message=request_message(self._store, row) if requested else None,
            pending_reason=row.pending_reason,
            waiting=waiting,
        )
        self._open[row.id] = (row, run, self._clock() + left)

    def _waiting(self, run: RunRow) -> tuple[Waiting, float]:
        """Return what the run waits for, and the seconds for which that is true."""
        sweep = self._sweep(run.sweep_id) if run.sweep_id is not None else None
        own = self._store.checkpoints.of_run(run.id) if run.attempt else []
        avoided = nodes_to_avoid(self._store, run) if run.attempt > 1 else {}
        whole = pause_s(run.cause, run.infrastructure_failures)
        # A clock that was set back must not make it long.
        pause = min(run.queued_at + whole - self._store.clock(), whole)
        left = min([*avoided.values(), *([pause] if pause > 0.0 else [])], default=math.inf)
        why = paused_after(run.cause or "", whole) if pause > 0.0 else None
        if run.forked_from is not None and run.resume_from is None:
            trunk = self._rows.get(run.forked_from) or self._store.runs.get(run.forked_from)
            why = waits_for_trunk(trunk.stored.spans[-1].name, shown_run(trunk))
        waiting = Waiting(
            run_id=run.id,
            number=run.number or 0,
            name=run.name,
            need=Need(**run.stored.resources),
            **rank_in_queue(run),
            sweep_id=run.sweep_id,
            sweep_name=sweep.name if sweep is not None else None,
            max_concurrent=sweep.stored.max_concurrent if sweep is not None else None,
            excluded_nodes=frozenset(avoided),
            pause=why,
            saved=saved(self._store, run),
            resume_from=self._resume_from(run, own),
            can_save=can_save(self._store, run),
            time_limit_s=run.stored.time_limit_s,
        )
        return waiting, left

    def _resume_from(self, run: RunRow, own: Sequence[CheckpointRow]) -> str | None:
        if run.rewound is None:
            return point_to_resume(own, run.resume_from)
        resumed = {one.number: one.resume_from for one in self._store.attempts.of_run(run.id)}
        return point_to_resume(own, run.resume_from, cast("Rewound", run.rewound), resumed)

    def _sweep(self, sweep_id: str) -> SweepRow:
        if sweep_id not in self._sweeps:
            self._sweeps[sweep_id] = self._store.sweeps.find(sweep_id)
        return self._sweeps[sweep_id]


class AttemptCache:
    """Used by the dispatcher's thread; ``changed`` may be called from any thread.

    Each write that changes what is decided on an attempt announces a change of its run. Two
    columns may be older: ``last_heartbeat_at`` and ``last_step``, which change every few seconds.
    Decisions take both from ``HeartbeatTable``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_new = True
        self._dirty = Noted()
        self._unheard: frozenset[str] = frozenset()
        """Runs of which no event is known: their first progress is a first sign of life."""
        self._by_run: dict[str, list[Attempt]] = {}
        self._rows: list[Attempt] = []

    def changed(self, change: Change) -> None:
        if not change.progress or change.id in self._unheard:
            self._dirty.add([change.id])

    def rows(self) -> list[Attempt]:
        """Return the open attempts as ``Attempts.list_open`` does, oldest first."""
        with self._dirty.taken() as dirty:
            self._refresh(dirty)
        return self._rows

    def _refresh(self, dirty: set[str]) -> None:
        whole = self._is_new or len(dirty) > MANY
        if not whole and not dirty:
            return
        found = self._store.attempts.list_open(None if whole else sorted(dirty))
        if whole:
            self._is_new, self._by_run = False, {}
        for run_id in dirty:
            self._by_run.pop(run_id, None)
        for row in found:
            self._by_run.setdefault(row.run_id, []).append(row)
        rows = [row for rows in self._by_run.values() for row in rows]
        self._rows = sorted(rows, key=lambda row: (row.created_at, row.id))
        self._unheard = frozenset(row.run_id for row in rows if not row.events_applied)
