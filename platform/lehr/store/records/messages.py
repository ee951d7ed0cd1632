"""Keys of requests, so that a repeated one records nothing more, and messages yet to be sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func
from sqlmodel import col, delete, select

from lehr.errors import Conflict
from lehr.store.database import Records
from lehr.store.tables import IdempotencyRow, OutboxRow

KEPT_S = 7 * 24 * 3600.0
"""A key is remembered at least this long. The API's documentation promises it."""


@dataclass(frozen=True)
class StoredAnswer:
    """What a request recorded the first time."""

    status: int
    made: str  # The id of what it made or changed.


class IdempotencyKeys(Records):
    """The keys that clients sent with their requests."""

    def answer(self, key: str, request_sha256: str) -> StoredAnswer | None:
        """Return what this request recorded before; None if it is new.

        Call it, act and call ``remember`` inside one ``transaction()``: then two requests with
        one key cannot both act.

        Raises:
            Conflict: the key was used for another request.
        """
        with self._db.read() as session:
            row = session.get(IdempotencyRow, key)
            if row is None:
                return None
            if row.request_sha256 != request_sha256:
                raise Conflict(
                    f"The idempotency key {key!r} was used for another request.",
                    hint="Use a new key for a new request.",
                )
            return StoredAnswer(row.status, row.made)

    def expire(self) -> int:
        """Remove keys that are older than ``KEPT_S``; return how many."""
        old = delete(IdempotencyRow).where(col(IdempotencyRow.created_at) < self._clock() - KEPT_S)
        # After a power cut the same keys are removed again: not worth a flush to disk.
        with self._db.write(durable=False) as session:
            return session.exec(old).rowcount

    def remember(self, key: str, request_sha256: str, status: int, made: str) -> None:
        with self._db.write() as session:
            session.add(
                IdempotencyRow(
                    key=key,
                    request_sha256=request_sha256,
                    status=status,
                    made=made,
                    created_at=self._clock(),
                )
            )
            session.flush()


MOST = 1_000
"""Messages that may wait for a webhook. One whose receiver is dead takes no place of another."""


class Outbox(Records):
    """Messages in the order of their next try. A message stays until it is removed."""

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
        """Return the message that is due first, but for those webhooks; None if there is none."""
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
