"""Record what has arrived since the last tick: answers to start calls, events, heartbeats."""

from __future__ import annotations

from functools import partial

from lehr.cluster.heartbeats import HeartbeatTable
from lehr.cluster.isolation import Isolation, Noted
from lehr.cluster.launcher import Launcher
from lehr.control.lifecycle import ACTIVE
from lehr.control.step import Subject
from lehr.store import Change, Store
from lehr.store.ids import run_of

HEARTBEATS_EVERY_S = 10.0
"""Heartbeats live in memory; after a restart every attempt counts as just seen."""
READING_EVENTS = "reading its events"
STARTS = "recording its start"


class Inbox:
    """Facts that arrived, each recorded once. It decides nothing.

    ``changed`` may be called from any thread; ``record`` only from the dispatcher's.
    """

    def __init__(
        self, store: Store, launcher: Launcher, heartbeats: HeartbeatTable, isolation: Isolation
    ) -> None:
        self._store = store
        self._launcher = launcher
        self._heartbeats = heartbeats
        self._isolation = isolation
        self._written_at = heartbeats.now()
        self.unread = Noted()
        """Attempts whose events have not been read: on their exits nothing is decided yet."""

    def enqueue_all(self) -> None:
        self.unread.add(attempt.id for attempt in self._store.attempts.list_open())
        active = [run.id for run in self._store.runs.by_state(ACTIVE)]
        self.unread.add(attempt.id for attempt in self._store.attempts.newest(active).values())

    def changed(self, change: Change) -> None:
        """Enqueue an attempt whose events have arrived. May be called from any thread; fast."""
        if change.kind == "metrics" and change.attempt is not None:
            self.unread.add([f"{change.id}-{change.attempt}"])

    def record(self) -> None:
        self._record_starts()
        self._apply_events()
        if self._heartbeats.now() - self._written_at >= HEARTBEATS_EVERY_S:
            self.write_heartbeats()

    def _record_starts(self) -> None:
        self._launcher.note_answers()
        for attempt_id in self._launcher.answered():
            run = Subject("run", run_of(attempt_id))
            record = partial(self._launcher.record_start, attempt_id)
            if not self._isolation.do(run, STARTS, record) and not self._isolation.tries_again(
                run, STARTS
            ):
                self._launcher.forget_answers(attempt_id)

    def write_heartbeats(self) -> None:
        """Write the heartbeats that are only in memory, all in one transaction."""
        self._written_at = self._heartbeats.now()
        self._store.attempts.record_heartbeats(self._heartbeats.take_unwritten())

    def _apply_events(self) -> None:
        with self.unread.taken() as attempt_ids:
            if not attempt_ids:
                return
            failed = self._store.event_applier.apply_all(
                sorted(attempt_ids), again=lambda attempt_id: self.unread.add([attempt_id])
            )
        for attempt_id in attempt_ids:
            subject = Subject("run", run_of(attempt_id))
            error = failed.get(attempt_id)
            if error is None:
                self._isolation.succeeded(subject, READING_EVENTS)
                continue
            self._isolation.failed(subject, READING_EVENTS, error)
            if self._isolation.tries_again(subject, READING_EVENTS):
                self.unread.add([attempt_id])
