"""Helpers for rows of runs, used by several parts of the record in the caller's session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session, col, select

from lehr.control.lifecycle import ENDED, RunState
from lehr.errors import Conflict, NotFound
from lehr.specs.run import RunSpec
from lehr.store.changes import Change
from lehr.store.database import Database
from lehr.store.ids import new_id
from lehr.store.tables import CheckpointRow, RolloutRow, RunRequest, RunRow, SweepRow, Transition

DELETE = "delete"
"""The request whose row says that a run's data was deleted: its tombstone."""


def announce_run(db: Database, run: RunRow) -> None:
    """Notify subscribers, after the commit, that the run and its sweep changed."""
    db.changed(Change("run", run.id))
    if run.sweep_id is not None:
        db.changed(Change("sweep", run.sweep_id))


def insert_run(
    session: Session,
    spec: RunSpec,
    *,
    at: float,
    actor: str,
    provenance: Mapping[str, Any] | None,
    sweep_id: str | None = None,
    resume_from: str | None = None,
    forked_from: str | None = None,
) -> RunRow:
    run = RunRow(
        id=unused_id(session, RunRow),
        name=spec.name,
        project=spec.project,
        sweep_id=sweep_id,
        spec=spec.model_dump(mode="json"),
        tags=list(spec.tags),
        priority=spec.priority,
        state=RunState.QUEUED.value,
        submitted_by=actor,
        provenance=dict(provenance or {}),
        forked_from=forked_from,
        resume_from=resume_from,
        created_at=at,
        queued_at=at,
    )
    session.add(run)
    session.flush()
    session.add(
        Transition(
            run_id=run.id,
            attempt=0,
            old=None,
            new=run.state,
            cause="submitted",
            actor=actor,
            at=at,
        )
    )
    return run


def unused_id(session: Session, table: type[RunRow | SweepRow | RolloutRow]) -> str:
    while True:
        found = new_id()
        if session.exec(select(table.number).where(table.id == found)).first() is None:
            return found


def get_run(session: Session, run_id: str) -> RunRow:
    run = session.exec(select(RunRow).where(RunRow.id == run_id)).one_or_none()
    if run is None:
        raise NotFound(f"There is no run {run_id!r}.")
    return run


def is_deleted(session: Session, run_id: str) -> bool:
    request = select(RunRequest.id).where(RunRequest.run_id == run_id, RunRequest.kind == DELETE)
    return session.exec(request).first() is not None


def refuse_deleted(session: Session, run: RunRow) -> None:
    """Raise Conflict for a run whose data was deleted."""
    if is_deleted(session, run.id):
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is kept.")


def waiting_forks(session: Session, run_id: str) -> list[RunRow]:
    """Return forks that have not ended and have no checkpoint of their own yet."""
    own = select(CheckpointRow.id).where(
        CheckpointRow.run_id == RunRow.id,
        col(CheckpointRow.removed_at).is_(None) | (col(CheckpointRow.copy_state) == "there"),
    )
    query = select(RunRow).where(
        RunRow.forked_from == run_id,
        col(RunRow.state).not_in([str(state) for state in ENDED]),
        ~own.exists(),
    )
    return list(session.exec(query.order_by(col(RunRow.number))).all())
