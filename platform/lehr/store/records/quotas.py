"""Quotas of projects: the most GPUs that their runs hold at a time."""

from __future__ import annotations

import re

from sqlmodel import col, select

from lehr.errors import NotFound, UserError, nearest
from lehr.specs.run import NAME
from lehr.store.changes import Change
from lehr.store.database import Clock, Database
from lehr.store.tables import QuotaRow


class QuotaRecords:
    """The quotas by project. A project without one has no limit."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def all(self) -> list[QuotaRow]:
        """Return the quotas by project."""
        with self._db.read() as session:
            return list(session.exec(select(QuotaRow).order_by(col(QuotaRow.project))).all())

    def put(self, project: str, gpus: int, *, actor: str) -> QuotaRow:
        """Set the quota of a project, old or new.

        Raises:
            UserError: the name is not that of a project.
        """
        if not re.fullmatch(NAME, project):
            raise UserError(
                f"{project!r} is not the name of a project.",
                hint="Up to 100 letters, digits, dots, dashes and underscores: ablations.",
            )
        with self._db.write() as session:
            row = session.get(QuotaRow, project)
            row = row or QuotaRow(project=project, gpus=0, changed_by="", changed_at=0.0)
            row.gpus, row.changed_by, row.changed_at = gpus, actor, self._clock()
            session.add(row)
        self._db.changed(Change("cluster", ""))
        return row

    def remove(self, project: str) -> QuotaRow:
        """Remove the quota of a project: its runs have no limit.

        Raises:
            NotFound: it has none; the nearest project with one is named.
        """
        with self._db.write() as session:
            row = session.get(QuotaRow, project)
            if row is None:
                near = nearest(project, session.exec(select(QuotaRow.project)).all())
                raise NotFound(
                    f"project {project!r} has no quota.",
                    hint=f"Did you mean {near}?" if near else "List them: lehr admin quota ls",
                )
            session.delete(row)
        self._db.changed(Change("cluster", ""))
        return row
