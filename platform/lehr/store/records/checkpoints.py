"""Checkpoints: what runs saved, and where its copies lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import case, func, update
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Session, col, select

from lehr.store.database import Records
from lehr.store.records.run_rows import announce_run, get_run, waiting_forks
from lehr.store.tables import CheckpointRow, RunRow
from lehr_trainer.contract.records import Checkpoint

CopyState = Literal["uploading", "there", "failed", "removed"]
THERE: CopyState = "there"
REMOVED: CopyState = "removed"


@dataclass(frozen=True)
class CopyReport:
    """A node's report of one copy. A repeated report changes nothing."""

    path: str  # The checkpoint's path, relative to the run directory.
    url: str
    state: CopyState
    error: str | None = None


class Checkpoints(Records):
    """The checkpoints of runs, and their copies."""

    def mark_removed(self, run_id: str, *, attempt: int, step: int) -> bool:
        """Record that its files are gone; False if unregistered or recorded before."""
        with self._db.write(what="remove_checkpoint") as session:
            removed = note_removed(session, run_id, attempt, step, self._clock())
            if removed:
                announce_run(self._db, get_run(session, run_id))
            return removed

    def mark_restored(self, run_id: str, path: str) -> None:
        """Record that its files are here again."""
        with self._db.write(what="restore_checkpoint") as session:
            for row in _rows(session, run_id):
                row.removed_at = None if row.path == path else row.removed_at
            announce_run(self._db, get_run(session, run_id))

    def of_run(self, run_id: str, *, removed: bool = False) -> list[CheckpointRow]:
        """List them by step, then attempt; with ``removed`` also those without files or a copy."""
        query = select(CheckpointRow).where(CheckpointRow.run_id == run_id)
        if not removed:
            query = query.where(
                col(CheckpointRow.removed_at).is_(None) | (col(CheckpointRow.copy_state) == "there")
            )
        return self._all(query.order_by(col(CheckpointRow.step), col(CheckpointRow.attempt)))

    def base_of(self, fork: RunRow) -> list[CheckpointRow]:
        """Return the checkpoint of another run that the fork starts from; none if it is gone."""
        if fork.resume_from is None or fork.forked_from is None:
            return []
        wanted = Path(fork.resume_from).parts[-3:]
        of_parent = self.of_run(fork.forked_from)
        return [point for point in of_parent if Path(point.path).parts == wanted]

    # ------------------------------------------------------------------------------- copies

    def note_copies(self, run_id: str, reports: Sequence[CopyReport]) -> list[str]:
        """Record what a node reports; return the paths that are not registered yet.

        A copy may be done before its checkpoint's record has arrived: then the node repeats it. A
        removed copy stays removed until its checkpoint is saved again: a report that comes late, or
        twice, is older than the removal.
        """
        unknown: list[str] = []
        with self._db.write() as session:
            run = get_run(session, run_id)
            rows = {row.path: row for row in _rows(session, run_id)}
            changed = False
            for report in reports:
                row = rows.get(report.path)
                if row is None or (row.copy_state == REMOVED != report.state):
                    unknown.append(report.path)
                elif (row.copy_url, row.copy_state, row.copy_error) != (
                    report.url,
                    report.state,
                    report.error,
                ):
                    if row.copy_state != report.state:
                        row.copy_at = self._clock()
                    row.copy_url, row.copy_state = report.url, report.state
                    row.copy_error = report.error
                    session.add(row)
                    changed = True
            if changed:
                announce_run(self._db, run)
        return unknown

    def copied(self, run_id: str) -> list[CheckpointRow]:
        """Return the run's checkpoints that have a copy, by attempt and step."""
        with self._db.read() as session:
            return [row for row in _rows(session, run_id) if row.copy_state == THERE]

    def needed_by_forks(self, run_id: str) -> set[str]:
        """Return the paths of the run's checkpoints that waiting forks will start from."""
        with self._db.read() as session:
            return {
                fork.resume_from.partition(f"/{run_id}/")[2]
                for fork in waiting_forks(session, run_id)
                if fork.resume_from is not None
            }

    def pinned_by_forks(self, run_id: str, path: str) -> list[RunRow]:
        """Return the forks that wait to start from this checkpoint."""
        with self._db.read() as session:
            return [
                fork
                for fork in waiting_forks(session, run_id)
                if (fork.resume_from or "").endswith(f"/{run_id}/{path}")
            ]


def put_checkpoint(session: Session, run_id: str, attempt: int, record: Checkpoint) -> None:
    """Register a checkpoint that an attempt has written, also in place of an earlier one."""
    names = {"path", "size_bytes", "digest", "reason", "val_loss", "score"}
    fields = record.model_dump(include=names)
    row = {"run_id": run_id, "attempt": attempt, "step": record.step, "created_at": record.time}
    may_be_copied = case(
        (col(CheckpointRow.copy_state) == REMOVED, None), else_=CheckpointRow.copy_state
    )
    session.connection().execute(
        insert(CheckpointRow)
        .values(**row, **fields)
        .on_conflict_do_update(
            index_elements=["run_id", "attempt", "step"],
            set_={**fields, "removed_at": None, "copy_state": may_be_copied},
        )
    )


def count_checkpoints(session: Session, run_id: str, attempt: int) -> int:
    """Return how many checkpoints of an attempt are registered, those without files included."""
    query = select(func.count()).where(
        CheckpointRow.run_id == run_id, CheckpointRow.attempt == attempt
    )
    return session.exec(query).one()


def note_removed(session: Session, run_id: str, attempt: int, step: int, at: float) -> bool:
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


def _rows(session: Session, run_id: str) -> list[CheckpointRow]:
    query = select(CheckpointRow).where(CheckpointRow.run_id == run_id)
    return list(
        session.exec(query.order_by(col(CheckpointRow.attempt), col(CheckpointRow.step))).all()
    )
