"""Attempts and checkpoints: the launches of a run, and what they saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import update
from sqlmodel import Session, col, select

from lehr.control.lifecycle import RunState
from lehr.errors import InternalError, NotFound
from lehr.store.base import StoreBase
from lehr.store.records.runs import get_run
from lehr.store.tables import Attempt, CheckpointRow, RunRow

_FIXED = frozenset({"id", "run_id", "number", "token_sha256", "created_at", "events_applied"})
_UPDATABLE = frozenset(Attempt.model_fields) - _FIXED


@dataclass(frozen=True)
class HeartbeatReport:
    """What an attempt needs to know when it shows that it lives."""

    run: RunRow
    attempt: Attempt
    fenced: bool
    """The run has another attempt by now, or none is wanted: this one must stop."""


class Attempts(StoreBase):
    def attempt(self, attempt_id: str) -> Attempt:
        with self.db.read() as session:
            return get_attempt(session, attempt_id)

    def attempts(self, run_id: str) -> list[Attempt]:
        """Oldest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(Attempt).where(Attempt.run_id == run_id).order_by(col(Attempt.number))
            )
            return list(rows.all())

    def newest_attempts(self, run_ids: list[str]) -> dict[str, Attempt]:
        """The newest attempt of each of these runs that has one, by run id."""
        with self.db.read() as session:
            rows = session.exec(
                select(Attempt)
                .join(RunRow, col(RunRow.id) == col(Attempt.run_id))
                .where(col(RunRow.id).in_(run_ids), col(Attempt.number) == col(RunRow.attempt))
            )
            return {row.run_id: row for row in rows.all()}

    def open_attempts(self) -> list[Attempt]:
        """Those whose process may live, or whose streams are not complete yet; oldest first."""
        with self.db.read() as session:
            rows = session.exec(
                select(Attempt)
                .where(col(Attempt.open).is_(True))
                .order_by(col(Attempt.created_at), col(Attempt.id))
            )
            return list(rows.all())

    def update_attempt(self, attempt_id: str, **columns: Any) -> Attempt:
        """Records facts about an attempt, such as when it was dispatched or how it exited."""
        wrong = columns.keys() - _UPDATABLE
        if wrong:
            raise InternalError(f"attempt {attempt_id}: cannot update {', '.join(sorted(wrong))}")
        with self.db.write(what=f"note of {min(columns)}") as session:
            row = get_attempt(session, attempt_id)
            for name, value in columns.items():
                setattr(row, name, value)
            session.add(row)
            session.flush()
            self._run_changed(get_run(session, row.run_id))
            return row

    def heartbeat(self, attempt_id: str, *, step: int | None = None) -> HeartbeatReport:
        """The attempt lives (and is at ``step``, as its shim's child sees it)."""
        at = self.clock()
        # Each heartbeat replaces the one before: not worth a flush to disk.
        with self.db.write(durable=False) as session:
            row = get_attempt(session, attempt_id)
            row.last_heartbeat_at = at
            if step is not None and (row.last_step is None or step > row.last_step):
                row.last_step, row.last_step_at = step, at
            session.add(row)
            run = get_run(session, row.run_id)
            fenced = run.attempt != row.number or not RunState(run.state).active
            return HeartbeatReport(run, row, fenced)

    def close_attempt(self, attempt_id: str) -> Attempt:
        """Nothing more will come of it: its process is gone, its streams complete or given up."""
        with self.db.write(what="close_attempt") as session:
            row = get_attempt(session, attempt_id)
            row.open = False
            session.add(row)
            self._run_changed(get_run(session, row.run_id))
            return row

    # ------------------------------------------------------------------------- checkpoints

    def add_checkpoint(
        self,
        run_id: str,
        *,
        attempt: int,
        step: int,
        path: str,
        size_bytes: int,
        digest: str,
        reason: str,
        val_loss: float | None = None,
        at: float | None = None,
    ) -> CheckpointRow:
        """Registers a checkpoint of the run; one that is known already is updated."""
        with self.db.write(what="add_checkpoint") as session:
            run = get_run(session, run_id)
            row = put_checkpoint(
                session,
                CheckpointRow(
                    run_id=run_id,
                    attempt=attempt,
                    step=step,
                    path=path,
                    size_bytes=size_bytes,
                    digest=digest,
                    reason=reason,
                    val_loss=val_loss,
                    created_at=self.clock() if at is None else at,
                ),
            )
            self._run_changed(run)
            return row

    def remove_checkpoint(self, run_id: str, *, attempt: int, step: int) -> bool:
        """Notes that its files are gone; False if it was not registered, or noted before."""
        with self.db.write(what="remove_checkpoint") as session:
            removed = mark_removed(session, run_id, attempt, step, self.clock())
            if removed:
                self._run_changed(get_run(session, run_id))
            return removed

    def checkpoints(self, run_id: str, *, removed: bool = False) -> list[CheckpointRow]:
        """By step, then attempt; those of which neither files nor a copy is left only if asked."""
        with self.db.read() as session:
            query = select(CheckpointRow).where(CheckpointRow.run_id == run_id)
            if not removed:
                query = query.where(
                    col(CheckpointRow.removed_at).is_(None)
                    | (col(CheckpointRow.copy_state) == "there")
                )
            rows = session.exec(query.order_by(col(CheckpointRow.step), col(CheckpointRow.attempt)))
            return list(rows.all())


def get_attempt(session: Session, attempt_id: str) -> Attempt:
    row = session.get(Attempt, attempt_id)
    if row is None:
        raise NotFound(f"There is no attempt {attempt_id!r}.")
    return row


def put_checkpoint(session: Session, new: CheckpointRow) -> CheckpointRow:
    row = session.exec(
        select(CheckpointRow).where(
            CheckpointRow.run_id == new.run_id,
            CheckpointRow.attempt == new.attempt,
            CheckpointRow.step == new.step,
        )
    ).one_or_none()
    if row is None:
        row = new
    else:
        row.path, row.size_bytes, row.digest = new.path, new.size_bytes, new.digest
        row.reason, row.val_loss, row.removed_at = new.reason, new.val_loss, None
    session.add(row)
    session.flush()
    return row


def mark_removed(session: Session, run_id: str, attempt: int, step: int, at: float) -> bool:
    done = session.connection().execute(
        update(CheckpointRow)
        .where(
            col(CheckpointRow.run_id) == run_id,
            col(CheckpointRow.attempt) == attempt,
            col(CheckpointRow.step) == step,
            col(CheckpointRow.removed_at).is_(None),
        )
        .values(removed_at=at)
    )
    return done.rowcount == 1
