"""Idempotency keys: a repeated request records nothing more."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.errors import Conflict
from lehr.store.database import Clock, Database
from lehr.store.tables import IdempotencyRow


@dataclass(frozen=True)
class StoredAnswer:
    """What a request recorded the first time."""

    status: int
    made: str
    """The id of what it made or changed."""


class IdempotencyKeys:
    """The keys that clients sent with their requests."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

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
