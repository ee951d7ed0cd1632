"""Functions on rows of runs within the caller's session, shared by several parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, func, literal
from sqlalchemy import select as sql_select
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Session, col, select

from lehr.control.lifecycle import ENDED, Desired, RunState
from lehr.errors import Conflict, NotFound
from lehr.specs.run import RunSpec
from lehr.store.changes import Change
from lehr.store.database import Database
from lehr.store.ids import unlike_ids
from lehr.store.tables import (
    CheckpointRow,
    ProvenanceRow,
    RolloutRow,
    RunRequest,
    RunRow,
    SweepRow,
    Transition,
    Trial,
)

DELETE = "delete"  # The kind of the request that marks a run's data as deleted: its tombstone.


def among(column: Any, ids: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that the column has one of these ids, however many they are.

    As one value: SQLite takes at most 32,766 in a statement.
    """
    listed = func.json_each(json.dumps(list(ids))).table_valued("value")
    condition: ColumnElement[bool] = column.in_(sql_select(listed.c.value))
    return condition


def announce_run(db: Database, run: RunRow) -> None:
    """Announce after the commit that the run changed, and with it its sweep."""
    announce(db, run.id, run.sweep_id)


def announce(db: Database, run_id: str, sweep_id: str | None, *, progress: bool = False) -> None:
    """Announce a change of a run by its ids. ``progress``: only the step of its attempt."""
    db.changed(Change("run", run_id, progress=progress))
    if sweep_id is not None:
        db.changed(Change("sweep", sweep_id, progress=progress))


def announce_runs(db: Database, runs: Sequence[tuple[str, str | None]]) -> None:
    """Announce the same of many runs, each with the id of its sweep."""
    db.changed(*(Change("run", run_id) for run_id, _ in runs))
    sweeps = dict.fromkeys(sweep_id for _, sweep_id in runs if sweep_id is not None)
    db.changed(*(Change("sweep", sweep_id) for sweep_id in sweeps))


def insert_run(
    session: Session,
    spec: RunSpec,
    *,
    at: float,
    actor: str,
    provenance: Mapping[str, Any] | None = None,
    submitted_by: str | None = None,
    sweep_id: str | None = None,
    resume_from: str | None = None,
    forked_from: str | None = None,
    run_id: str | None = None,
    evaluates: str | None = None,
) -> RunRow:
    run = RunRow(
        id=run_id or unused_id(session, RunRow),
        name=spec.name,
        project=spec.project,
        sweep_id=sweep_id,
        spec=spec.model_dump(mode="json"),
        tags=list(spec.tags),
        note=spec.notes,
        priority=spec.priority,
        claim=spec.claim,
        state=RunState.QUEUED.value,
        submitted_by=submitted_by or actor,
        provenance_sha256=keep_provenance(session, provenance),
        forked_from=forked_from,
        resume_from=resume_from,
        evaluates=evaluates,
        created_at=at,
        queued_at=at,
    )
    session.add(run)
    session.flush()
    session.add(Transition(run_id=run.id, **submission(at, actor)))
    return run


def submission(at: float, actor: str) -> dict[str, Any]:
    """Return the columns of a run's first transition, except the run."""
    return {
        "attempt": 0,
        "old": None,
        "new": RunState.QUEUED.value,
        "cause": "submitted",
        "actor": actor,
        "at": at,
    }


def queued_columns(at: float, submitted_by: str) -> dict[str, Any]:
    """Return the columns that are equal in all runs that one statement queues."""
    return {
        "state": RunState.QUEUED.value,
        "desired": Desired.RUN.value,
        "submitted_by": submitted_by,
        "created_at": at,
        "queued_at": at,
        "archived": False,
        "attempt": 0,
        "checkpoint_seq": 0,
        "user_failures": 0,
        "infrastructure_failures": 0,
        "preemptions": 0,
    }


def unused_ids(
    session: Session, table: type[RunRow | SweepRow | RolloutRow], ids: Sequence[str]
) -> list[str]:
    """Return these ids, or others if one is in use: 1 draw in 6 x 10^11 for each row there is."""
    while session.exec(select(table.number).where(among(table.id, ids))).first() is not None:
        ids = unlike_ids(len(ids))
    return list(ids)


def unused_id(session: Session, table: type[RunRow | SweepRow | RolloutRow]) -> str:
    return unused_ids(session, table, unlike_ids(1))[0]


def get_run(session: Session, run_id: str) -> RunRow:
    run = session.exec(select(RunRow).where(RunRow.id == run_id)).one_or_none()
    if run is None:
        raise NotFound(f"There is no run {run_id!r}.")
    return run


def shown_run(run: RunRow) -> str:
    """Return a run's name and id for a message."""
    return f"{run.name} ({run.id})"


def is_deleted(session: Session, run_id: str) -> bool:
    request = select(RunRequest.id).where(RunRequest.run_id == run_id, RunRequest.kind == DELETE)
    return session.exec(request).first() is not None


def refuse_deleted(session: Session, run: RunRow) -> None:
    """Raise Conflict if the data of the run was deleted."""
    if is_deleted(session, run.id):
        raise Conflict(f"{run.name} ({run.id}) was deleted; only its record is kept.")


def waiting_forks(session: Session, run_id: str) -> list[RunRow]:
    """Return forks of the run that have not ended and have no checkpoint of their own yet."""
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


def trunk_id(sweep_id: str) -> ScalarSelect[str | None]:
    """Return the id of the run that the trials of a sweep start from, as an expression."""
    return (
        sql_select(col(RunRow.forked_from))
        .join(Trial, col(Trial.run_id) == col(RunRow.id))
        .where(col(Trial.sweep_id) == sweep_id)
        .limit(1)
        .scalar_subquery()
    )


def waits_for_trunk() -> ColumnElement[bool]:
    """Return whether a run starts from the last checkpoint of one that has not saved it yet."""
    return col(RunRow.forked_from).is_not(None) & col(RunRow.resume_from).is_(None)


def total_steps() -> ColumnElement[int | None]:
    """Return the number of a run's steps as an expression of its row; null if it is not known."""
    spec = col(RunRow.spec)
    named = func.json_extract(spec, "$.trainer.steps_arg")
    at = literal('$.trainer.args."').concat(named).concat('"')
    return func.coalesce(
        func.json_extract(spec, "$.train.steps"),
        func.json_extract(spec, "$.trainer.steps"),
        func.json_extract(spec, at),
    )


def provenance_digest(data: Mapping[str, Any]) -> str:
    """Return the digest of the content; the order of keys does not matter."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def keep_provenance(session: Session, data: Mapping[str, Any] | None) -> str | None:
    """Store provenance, unless it is there already. Return its key; None for an empty one."""
    if not data:
        return None
    key = provenance_digest(data)
    row = {"sha256": key, "data": dict(data)}
    session.connection().execute(insert(ProvenanceRow).on_conflict_do_nothing(), row)
    return key


def provenance_of(session: Session, run: RunRow) -> dict[str, Any]:
    found = None
    if run.provenance_sha256 is not None:
        found = session.get(ProvenanceRow, run.provenance_sha256)
    return {} if found is None else found.data
