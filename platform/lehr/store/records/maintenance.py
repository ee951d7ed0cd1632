"""Maintenance windows, as administrators declare them."""

from __future__ import annotations

from sqlmodel import Field, SQLModel, col, select

from lehr.errors import NotFound, UserError
from lehr.store.changes import Change
from lehr.store.database import Clock, Database

MOST = 200
KEPT_S = 86_400.0
"""How long a window is kept after its end: the clock of the server may be set back."""


class MaintenanceRow(SQLModel, table=True):
    """A time in which nodes are not used."""

    __tablename__ = "maintenance_windows"

    id: int | None = Field(default=None, primary_key=True)
    node: str | None = None
    """None: all nodes."""
    starts_at: float
    """When it begins for the first time."""
    duration_s: float
    repeat: str | None = None
    """daily, weekly, or None: once."""
    note: str = ""
    created_by: str
    created_at: float


class MaintenanceRecords:
    """The declared windows, also past ones."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def all(self) -> list[MaintenanceRow]:
        """Return the windows in the order in which they were declared."""
        with self._db.read() as session:
            return list(session.exec(select(MaintenanceRow).order_by(col(MaintenanceRow.id))).all())

    def add(
        self,
        *,
        node: str | None,
        starts_at: float,
        duration_s: float,
        repeat: str | None,
        note: str,
        actor: str,
    ) -> MaintenanceRow:
        """Declare a window. Windows that ended ``KEPT_S`` ago and do not repeat are removed.

        Raises:
            UserError: there are too many.
        """
        now = self._clock()
        with self._db.write() as session:
            rows = list(session.exec(select(MaintenanceRow)).all())
            over = {
                row.id: now - row.starts_at - row.duration_s
                for row in rows
                if row.repeat is None and row.starts_at + row.duration_s <= now
            }
            for row in rows:
                if over.get(row.id, 0.0) > KEPT_S:
                    session.delete(row)
            if len(rows) - len(over) >= MOST:
                raise UserError(
                    f"there are {MOST} maintenance windows, the maximum.",
                    hint="Remove one: lehr maintenance rm ID",
                )
            made = MaintenanceRow(
                node=node,
                starts_at=starts_at,
                duration_s=duration_s,
                repeat=repeat,
                note=note,
                created_by=actor,
                created_at=now,
            )
            session.add(made)
            session.flush()
        self._db.changed(Change("cluster", ""))
        return made

    def remove(self, window_id: int) -> MaintenanceRow:
        """Remove a window. If it is open, its nodes are used again.

        Raises:
            NotFound: there is none of this number.
        """
        with self._db.write() as session:
            row = session.get(MaintenanceRow, window_id)
            if row is None:
                raise NotFound(
                    f"There is no maintenance window {window_id}.",
                    hint="List them: lehr maintenance ls",
                )
            session.delete(row)
        self._db.changed(Change("cluster", ""))
        return row
