"""The outbox: messages to webhooks that were not delivered yet."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import func
from sqlmodel import col, delete, select

from lehr.store.database import Clock, Database
from lehr.store.tables import OutboxRow

MOST = 1_000
"""Messages that may wait for a webhook. One whose receiver is dead takes no place of another."""


class Outbox:
    """Messages in the order of their next try. A message stays until it is removed."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def add(self, webhook: str, body: dict[str, Any]) -> bool:
        """Record a message, due now; return False if too many wait for the webhook already."""
        count = select(func.count()).select_from(OutboxRow).where(col(OutboxRow.webhook) == webhook)
        with self._db.write() as session:
            if session.exec(count).one() >= MOST:
                return False
            now = self._clock()
            session.add(OutboxRow(webhook=webhook, body=body, created_at=now, due_at=now))
            return True

    def next(self, *, without: Collection[str] = ()) -> OutboxRow | None:
        """Return the message that is due first; None if there is none.

        Args:
            without: webhooks whose messages are passed over.
        """
        first = select(OutboxRow).order_by(col(OutboxRow.due_at), col(OutboxRow.id)).limit(1)
        if without:
            first = first.where(col(OutboxRow.webhook).not_in(without))
        with self._db.read() as session:
            return session.exec(first).first()

    def postpone(self, message_id: int, due_at: float) -> None:
        """Record that a try failed, and when the next one is due."""
        with self._db.write() as session:
            row = session.get(OutboxRow, message_id)
            if row is not None:
                row.tries += 1
                row.due_at = due_at
                session.add(row)

    def remove(self, message_id: int) -> None:
        """Forget a message that was delivered or given up."""
        with self._db.write() as session:
            session.exec(delete(OutboxRow).where(col(OutboxRow.id) == message_id))
