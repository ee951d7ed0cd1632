"""New trials and their runs as rows, made before the transaction that inserts them.

A sweep may have thousands of trials, and nobody else can write during their transaction. So specs
are dumped and ids are drawn before it, and each table gets one statement for all rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import TableClause, bindparam, column, insert, literal, select, table, update
from sqlmodel import Session, SQLModel, col

from lehr.specs.sweep_expand import TrialSpec
from lehr.store.changes import Change
from lehr.store.database import Database
from lehr.store.ids import unlike_ids
from lehr.store.records.run_rows import announce_runs, queued_columns, submission, unused_ids
from lehr.store.tables import RunRow, SweepRow, Transition, Trial


class TrialRows:
    """Rows of trials in the sweep's order."""

    def __init__(self, trials: Sequence[TrialSpec]) -> None:
        self._parameters = [_dumped(parameters) for parameters, _ in trials]
        self._runs = [
            {
                "name": spec.name,
                "project": spec.project,
                "spec": _dumped(spec.model_dump(mode="json")),
                "tags": _dumped(spec.tags),
                "note": spec.notes,
                "priority": spec.priority,
                "claim": _dumped(spec.claim) if spec.hypothesis else None,
            }
            for _, spec in trials
        ]
        self._ids = unlike_ids(len(trials))

    @classmethod
    def of(cls, trials: Sequence[TrialSpec] | TrialRows) -> TrialRows:
        """Return the rows of these trials; rows that are made already stay as they are."""
        return trials if isinstance(trials, cls) else cls(trials)  # type: ignore[arg-type]

    def insert(
        self,
        session: Session,
        db: Database,
        sweep_id: str,
        *,
        first: int,
        at: float,
        actor: str,
        provenance_sha256: str | None,
        submitted_by: str | None = None,
        trunk: str | None = None,
    ) -> list[str]:
        """Insert the trials, numbered from ``first``, and queue their runs. Return the run ids.

        ``trunk``: the run from whose last checkpoint they start.
        """
        if not self._runs:
            return []
        common = {
            **queued_columns(at, submitted_by or actor),
            "sweep_id": sweep_id,
            "provenance_sha256": provenance_sha256,
            "forked_from": trunk,
        }
        session.flush()
        connection = session.connection()
        ids = unused_ids(session, RunRow, self._ids)
        connection.execute(
            insert(_untyped(RunRow, "id", *self._runs[0], *common)),
            [{"id": own, **run, **common} for own, run in zip(ids, self._runs, strict=True)],
        )
        submitted = submission(at, actor)
        connection.execute(
            insert(_untyped(Transition, *submitted, "run_id")),
            [{**submitted, "run_id": run_id} for run_id in ids],
        )
        connection.execute(
            insert(_untyped(Trial, "sweep_id", "number", "parameters", "run_id")),
            [
                {"sweep_id": sweep_id, "number": number, "parameters": values, "run_id": run_id}
                for number, (values, run_id) in enumerate(
                    zip(self._parameters, ids, strict=True), start=first
                )
            ],
        )
        db.changed(*(Change("run", run_id) for run_id in ids), Change("sweep", sweep_id))
        return ids


def _untyped(model: type[SQLModel], *names: str) -> TableClause:
    """Return the table for values that are already as SQLite stores them, JSON as text."""
    unknown = set(names) - set(model.model_fields)
    assert not unknown, unknown
    return table(str(model.__tablename__), *(column(name) for name in names))


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


_OF_SPEC = ("name", "project", "spec", "tags", "priority", "claim")
_COPIED = (*_OF_SPEC, "sweep_id", "provenance_sha256", "forked_from")
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
    found = dict(zip(old, unused_ids(session, RunRow, unlike_ids(len(old))), strict=True))
    connection = session.connection()
    replaced = [{"replaced": run_id, "by": new} for run_id, new in found.items()]
    fixed = queued_columns(at, actor)
    copied = [getattr(RunRow, name) for name in _COPIED]
    copy = insert(RunRow).from_select(
        ["id", *_COPIED, *fixed],
        select(bindparam("by"), *copied, *map(literal, fixed.values())).where(
            col(RunRow.id) == bindparam("replaced")
        ),
        include_defaults=False,
    )
    connection.execute(copy, replaced)
    submitted = submission(at, actor)
    connection.execute(insert(Transition), [{**submitted, "run_id": new} for new in found.values()])
    connection.execute(
        update(Trial)
        .where(col(Trial.sweep_id) == sweep_id, col(Trial.run_id) == bindparam("replaced"))
        .values(run_id=bindparam("by")),
        replaced,
    )
    connection.execute(
        update(SweepRow)
        .where(col(SweepRow.seeds_of) == bindparam("replaced"))
        .values(seeds_of=bindparam("by")),
        replaced,
    )
    announce_runs(db, [(new, sweep_id) for new in found.values()])
    return found
