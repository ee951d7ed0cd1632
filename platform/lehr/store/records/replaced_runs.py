"""New runs in place of those of a sweep's trials, in few statements."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, insert, literal, select, update
from sqlmodel import Session, col

from lehr.store.database import Database
from lehr.store.ids import unlike_ids
from lehr.store.records.run_rows import (
    announce_runs,
    insert_with_ids,
    queued_columns,
    submission,
)
from lehr.store.tables import RunRow, SweepRow, Transition, Trial

_COPIED = ("name", "project", "spec", "tags", "priority", "sweep_id", "provenance_sha256")
"""What a new run takes from the one that it replaces."""


def replace_runs(
    session: Session, db: Database, sweep_id: str, old: Sequence[str], *, at: float, actor: str
) -> dict[str, str]:
    """Queue a new run for the trial of each of these runs. Return the new ids by the old ones.

    The rows are copied within SQLite: specs are as large as they are many.
    """
    if not old:
        return {}
    session.flush()
    found = _insert(session, old, at, actor)
    connection = session.connection()
    submitted = submission(at, actor)
    connection.execute(insert(Transition), [{**submitted, "run_id": new} for new in found.values()])
    connection.execute(
        update(Trial)
        .where(col(Trial.sweep_id) == sweep_id, col(Trial.run_id) == bindparam("replaced"))
        .values(run_id=bindparam("by")),
        [{"replaced": run_id, "by": new} for run_id, new in found.items()],
    )
    connection.execute(
        update(SweepRow)
        .where(col(SweepRow.seeds_of) == bindparam("replaced"))
        .values(seeds_of=bindparam("by")),
        [{"replaced": run_id, "by": new} for run_id, new in found.items()],
    )
    announce_runs(db, [(new, sweep_id) for new in found.values()])
    return found


def _insert(session: Session, old: Sequence[str], at: float, actor: str) -> dict[str, str]:
    fixed = queued_columns(at, actor)
    copied = [getattr(RunRow, name) for name in _COPIED]
    copy = insert(RunRow).from_select(
        ["id", *_COPIED, *fixed],
        select(bindparam("new"), *copied, *map(literal, fixed.values())).where(
            col(RunRow.id) == bindparam("replaced")
        ),
        include_defaults=False,
    )

    def insert_copies(ids: Sequence[str]) -> None:
        rows = [{"new": new, "replaced": run_id} for run_id, new in zip(old, ids, strict=True)]
        session.connection().execute(copy, rows)

    ids = insert_with_ids(session, unlike_ids(len(old)), insert_copies)
    return dict(zip(old, ids, strict=True))
