"""The audit: requests of people that changed something, or were refused."""

from __future__ import annotations

from sqlalchemy import func
from sqlmodel import col, delete, select

from lehr.store.database import Clock, Database
from lehr.store.tables import AuditRow

MOST = 100_000
"""Rows that are kept; about 15 MB. The oldest go first."""
_TRIM_EVERY = 1_000


class AuditRecords:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def add(
        self, name: str, role: str, *, method: str, path: str, status: int, address: str
    ) -> None:
        with self._db.write() as session:
            row = AuditRow(
                at=self._clock(),
                name=name,
                role=role,
                method=method,
                path=path,
                status=status,
                address=address,
            )
            session.add(row)
            session.flush()
            if row.id is not None and row.id % _TRIM_EVERY == 0:
                session.exec(delete(AuditRow).where(col(AuditRow.id) <= row.id - MOST))

    def page(
        self,
        *,
        name: str | None = None,
        since: float | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[list[AuditRow], int]:
        """Return rows, newest first, and how many match in all.

        Args:
            name: only of this token.
            since: only from this time on, in seconds since the epoch.
            before: only rows before the one of this id, for the next page.
            limit: most rows.
        """
        wanted = []
        if name is not None:
            wanted.append(col(AuditRow.name) == name)
        if since is not None:
            wanted.append(col(AuditRow.at) >= since)
        with self._db.read() as session:
            total = session.exec(select(func.count()).select_from(AuditRow).where(*wanted)).one()
            if before is not None:
                wanted.append(col(AuditRow.id) < before)
            newest = select(AuditRow).where(*wanted).order_by(col(AuditRow.id).desc()).limit(limit)
            return list(session.exec(newest).all()), total
