"""Apply an attempt's events to its run, each exactly once.

The index is in another file, so no transaction spans both. Instead ``lehr.db`` records how far each
attempt's events have been applied, in the transaction that applies them. After a crash the rest is
applied, and nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, col

from lehr.base import own_logs
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound, StoreUnavailable
from lehr.store.database import Clock, Database
from lehr.store.records.attempts import get_attempt, newest_step
from lehr.store.records.checkpoints import count_checkpoints, note_removed, put_checkpoint
from lehr.store.records.run_rows import among, announce, get_run
from lehr.store.records.transitions import Why, transition_run
from lehr.store.streams import index
from lehr.store.streams.index import Readers
from lehr.store.tables import Attempt, RunRow
from lehr_trainer.contract import layout
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import (
    AnyRecord,
    CheckpointRemoved,
    Finished,
    Started,
    record_adapter,
)
from lehr_trainer.contract.records import Checkpoint as CheckpointRecord

_log = logging.getLogger("lehr.store")
_KINDS = ("started", "checkpoint", "checkpoint_removed", "finished")
_AT_ONCE = 500
"""Records of an attempt in one transaction: a flood of them must leave room for other writes."""
MOST_CHECKPOINTS = 50_000
"""Of an attempt, those included whose files were removed. More are not recorded."""


class _Position(NamedTuple):
    """How far the events of an attempt have been applied."""

    attempt_id: str
    number: int
    applied: int
    last_step: int | None
    run_id: str
    sweep_id: str | None


@dataclass(frozen=True)
class _News:
    """The events of an attempt in the index that have not been applied yet."""

    position: _Position
    records: list[AnyRecord]
    step: int | None  # The newest step.
    upto: int
    more: bool  # There are later records, for the next transaction.


class EventApplier:
    """The part that applies the records of ``events.jsonl`` to the rows of ``lehr.db``."""

    def __init__(self, db: Database, index: Readers, clock: Clock) -> None:
        self._db = db
        self._index = index
        self._clock = clock

    def apply(self, attempt_id: str) -> None:
        """Apply what the attempt recorded since the last call.

        The first ``started`` makes the run running, checkpoints are registered or marked removed,
        and ``finished`` is put into the attempt's row; its last step too. The records of an
        attempt that was superseded change only its own row.
        """
        if not self._positions([attempt_id]):
            raise NotFound(f"There is no attempt {attempt_id!r}.")
        more = [attempt_id]
        while more:
            more.clear()
            for error in self.apply_all([attempt_id], again=more.append).values():
                raise error

    def apply_all(
        self, attempt_ids: Sequence[str], again: Callable[[str], object] = str
    ) -> dict[str, Exception]:
        """Apply what these attempts recorded, up to ``_AT_ONCE`` records each, in one transaction.

        Return the errors by attempt. An attempt with an error changes nothing, and is independent
        of the others. ``again`` is called with each attempt that has more records, or whose records
        another thread applied meanwhile.

        Raises:
            StoreUnavailable: the store fails for every attempt.
        """
        failed: dict[str, Exception] = {}
        progress: list[_News] = []
        found: dict[str, _News] = {}
        whole: dict[str, bool] = {}
        for attempt_id, position in self._positions(attempt_ids).items():
            try:
                news = self._news(position)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - returned to the caller
                failed[attempt_id] = error
                continue
            if news is not None and news.records:
                found[attempt_id] = news
            elif news is not None:
                progress.append(news)
        if not found and not progress:
            return failed
        with self._db.write(durable=bool(found), what="apply_events") as session:
            if progress:
                self._apply_progress(session, progress)
            for attempt_id, news in found.items():
                try:
                    with session.begin_nested():
                        whole[attempt_id] = self._apply_news(session, news) and not news.more
                except OperationalError:
                    raise  # The disk or the file: it concerns every attempt.
                except Exception as error:  # noqa: BLE001 - returned to the caller
                    failed[attempt_id] = error
        for attempt_id, complete in whole.items():
            if not complete:
                again(attempt_id)
        return failed

    def _positions(self, attempt_ids: Sequence[str]) -> dict[str, _Position]:
        """Return how far the events of these attempts are applied; without unknown attempts."""
        with self._db.read() as session:
            rows = session.execute(
                select(
                    col(Attempt.id),
                    col(Attempt.number),
                    col(Attempt.events_applied),
                    col(Attempt.last_step),
                    col(Attempt.run_id),
                    col(RunRow.sweep_id),
                )
                .join(RunRow, col(RunRow.id) == col(Attempt.run_id))
                .where(among(Attempt.id, attempt_ids))
            )
            return {row[0]: _Position(*row) for row in rows}

    def _apply_progress(self, session: Session, progress: Sequence[_News]) -> None:
        """Record the last steps of attempts whose records cause nothing else, in one statement."""
        at = self._clock()
        session.connection().execute(
            update(Attempt)
            .where(
                col(Attempt.id) == bindparam("which"),
                col(Attempt.events_applied) == bindparam("since"),
            )
            .values(events_applied=bindparam("upto"), **newest_step()),
            [
                {
                    "which": news.position.attempt_id,
                    "since": news.position.applied,
                    "upto": news.upto,
                    "step": news.step,
                    "at": at,
                }
                for news in progress
            ],
        )
        for news in progress:
            before = news.position.last_step
            if news.step is not None and (before is None or news.step > before):
                announce(self._db, news.position.run_id, news.position.sweep_id, progress=True)

    def _news(self, position: _Position) -> _News | None:
        run_id, number, applied = position.run_id, position.number, position.applied
        with self._index.read() as connection:
            row = connection.execute(
                "SELECT runs.id, indexed FROM streams JOIN runs ON runs.id = streams.run"
                " WHERE runs.run=? AND attempt=? AND name=?",
                (run_id, number, EVENTS),
            ).fetchone()
            if row is None or row[1] <= applied:
                return None
            run, upto = row
            rows = connection.execute(
                "SELECT kind, body, offset FROM records WHERE run=? AND attempt=? AND offset>=?"
                " AND kind IN (?, ?, ?, ?) ORDER BY offset LIMIT ?",
                (run, number, applied, *_KINDS, _AT_ONCE + 1),
            ).fetchall()
            newest = connection.execute(
                "SELECT step FROM latest WHERE run=? AND metric=? AND attempt=?",
                (run, index.TIME, number),
            ).fetchone()
        more = len(rows) > _AT_ONCE
        if more:
            upto = rows.pop()[2]
        records: list[AnyRecord] = [record_adapter.validate_json(body) for _, body, _ in rows]
        return _News(position, records, newest[0] if newest else None, upto, more)

    def _apply_news(self, session: Session, news: _News) -> bool:
        """Apply the news; return False if another thread applied them meanwhile."""
        attempt = get_attempt(session, news.position.attempt_id)
        if attempt.events_applied != news.position.applied:
            return False
        run = get_run(session, attempt.run_id)
        stepped = news.step is not None and (
            attempt.last_step is None or news.step > attempt.last_step
        )
        if stepped:
            attempt.last_step, attempt.last_step_at = news.step, self._clock()
        attempt.events_applied = news.upto
        session.add(attempt)
        records = _with_room(session, attempt, news.records)
        changed = [self._apply_one(session, run, attempt, record) for record in records]
        session.flush()
        if any(changed) or stepped:
            announce(self._db, run.id, run.sweep_id, progress=not any(changed))
        return True

    def _apply_one(
        self, session: Session, run: RunRow, attempt: Attempt, record: AnyRecord
    ) -> bool:
        """Apply a record; return whether it changed more than the attempt's step."""
        if isinstance(record, Finished):
            attempt.finished = record.model_dump(mode="json")
            return True
        if run.attempt != attempt.number:
            return False
        if isinstance(record, Started) and run.state == RunState.STARTING.value:
            move = (
                RunState.STARTING,
                RunState.RUNNING,
                Why("started", None, "trainer", self._clock()),
            )
            return transition_run(session, self._db, run.id, attempt.number, *move)
        if isinstance(record, CheckpointRecord):
            at = layout.checkpoint_at(record.path)
            if at is None or at[0] > attempt.number or at[1] != record.step:
                _log.warning(
                    "%s: %r is not a checkpoint of it",
                    attempt.id,
                    record.path[:200],
                    extra=own_logs.of_attempt(attempt.id),
                )
                return False
            put_checkpoint(session, run.id, attempt.number, record)
            return True
        if isinstance(record, CheckpointRemoved):
            # Retention may remove checkpoints of earlier attempts.
            number = layout.attempt_number(Path(record.path.partition("/")[0])) or attempt.number
            return note_removed(session, run.id, number, record.step, record.time)
        return False


def _with_room(session: Session, attempt: Attempt, found: list[AnyRecord]) -> list[AnyRecord]:
    """Return the records without the checkpoints beyond ``MOST_CHECKPOINTS``."""
    new = sum(isinstance(record, CheckpointRecord) for record in found)
    if not new:
        return found
    room = MOST_CHECKPOINTS - count_checkpoints(session, attempt.run_id, attempt.number)
    if new <= room:
        return found
    if room > 0:  # So that a flood writes one line.
        _log.warning(
            "%s: it has %s checkpoints, the most of an attempt; more are not recorded",
            attempt.id,
            f"{MOST_CHECKPOINTS:,}",
            extra=own_logs.of_attempt(attempt.id),
        )
    kept = []
    for record in found:
        if isinstance(record, CheckpointRecord):
            room -= 1
            if room < 0:
                continue
        kept.append(record)
    return kept
