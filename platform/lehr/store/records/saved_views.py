"""Saved views of the runs page: an address query under a name."""

from __future__ import annotations

from sqlmodel import col, select

from lehr.errors import NotFound, UserError, nearest
from lehr.store.database import Clock, Database
from lehr.store.tables import SavedViewRow

MOST = 200


class SavedViewRecords:
    """The views of all people, by name."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def all(self) -> list[SavedViewRow]:
        """Return the views by name."""
        with self._db.read() as session:
            rows = session.exec(select(SavedViewRow).order_by(col(SavedViewRow.name)))
            return list(rows.all())

    def put(self, name: str, query: str) -> SavedViewRow:
        """Save a view, or replace the one of that name.

        Raises:
            UserError: there are too many.
        """
        with self._db.write() as session:
            row = session.get(SavedViewRow, name)
            if row is None and len(session.exec(select(SavedViewRow.name)).all()) >= MOST:
                raise UserError(
                    f"there are {MOST} saved views, the maximum.",
                    hint="Remove one that is not used.",
                )
            row = row or SavedViewRow(name=name, query=query, saved_at=0.0)
            row.query = query
            row.saved_at = self._clock()
            session.add(row)
            return row

    def remove(self, name: str) -> None:
        """Remove a view.

        Raises:
            NotFound: there is none of that name; the nearest is named.
        """
        with self._db.write() as session:
            row = session.get(SavedViewRow, name)
            if row is None:
                near = nearest(name, session.exec(select(SavedViewRow.name)).all())
                raise NotFound(
                    f"There is no view {name!r}.", hint=f"Did you mean {near}?" if near else None
                )
            session.delete(row)
