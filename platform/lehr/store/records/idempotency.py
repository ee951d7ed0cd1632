"""Idempotency keys: a repeated request records nothing more."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import text

from lehr.errors import Conflict
from lehr.store.database import Clock, Database
from lehr.store.tables import IdempotencyRow

KEPT_S = 7 * 24 * 3600.0
"""A key is remembered at least this long. The API's documentation promises it."""
_BATCH = 20
"""Keys removed in one transaction: an answer may have megabytes, and others wait for the lock."""
_BATCHES = 250
# Keys are recorded in order of time, so the first rows are the oldest: no index is needed.
_EXPIRE = text(
    "DELETE FROM idempotency_keys WHERE created_at < :before"
    " AND rowid IN (SELECT rowid FROM idempotency_keys ORDER BY rowid LIMIT :batch)"
)


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
        self.elapsed: Clock = time.monotonic
        """Seconds that have passed, whatever the clock was set to."""
        self._looked_at = clock(), self.elapsed()
        self._set_forward_s = 0.0

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
        """Remove keys that are older than ``KEPT_S``; return how many.

        Removes at most some thousand in small transactions. The rest is left to the next call. A
        clock that is set forward while the server runs makes no key older.
        """
        (clock, elapsed), self._looked_at = self._looked_at, (self._clock(), self.elapsed())
        jumped_s = (self._looked_at[0] - clock) - (self._looked_at[1] - elapsed)
        self._set_forward_s = max(0.0, self._set_forward_s + jumped_s)
        before = self._looked_at[0] - self._set_forward_s - KEPT_S
        removed = 0
        for _ in range(_BATCHES):
            batch = self._expire_batch(before)
            removed += batch
            if batch < _BATCH:
                break
        return removed

    def _expire_batch(self, before: float) -> int:
        # After a power cut the same keys are removed again: not worth a flush to disk.
        with self._db.write(durable=False) as session:
            removed = session.connection().execute(_EXPIRE, {"batch": _BATCH, "before": before})
            return int(removed.rowcount)

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
