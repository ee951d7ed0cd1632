"""Which projects have sent which capsules."""

from __future__ import annotations

from collections.abc import Collection

from sqlmodel import col, delete, select

from lehr.store.database import Clock, Database
from lehr.store.tables import CapsuleSenderRow


class CapsuleSenders:
    """The projects whose tokens have sent a capsule. Tokens for all projects are not recorded."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def add(self, digest: str, projects: Collection[str]) -> None:
        """Record that a token for these projects has sent the capsule. Idempotent."""
        with self._db.write() as session:
            for project in sorted(projects):
                session.merge(
                    CapsuleSenderRow(digest=digest, project=project, sent_at=self._clock())
                )

    def sent(self, digest: str, projects: Collection[str]) -> bool:
        """Return whether a token for one of these projects has sent the capsule."""
        with self._db.read() as session:
            rows = session.exec(
                select(CapsuleSenderRow.digest)
                .where(
                    CapsuleSenderRow.digest == digest, col(CapsuleSenderRow.project).in_(projects)
                )
                .limit(1)
            )
            return rows.first() is not None

    def forget(self, digests: Collection[str]) -> None:
        """Remove the senders of capsules that were removed."""
        if not digests:
            return
        with self._db.write() as session:
            session.exec(delete(CapsuleSenderRow).where(col(CapsuleSenderRow.digest).in_(digests)))
