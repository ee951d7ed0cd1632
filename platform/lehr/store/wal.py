"""Limit the size of a database's write-ahead log while readers overlap.

SQLite starts its log again only at a moment without any reader in it. Its own checkpoints do not
wait for such a moment, and where readers overlap there is none: the log then grows until the disk
is full. A TRUNCATE checkpoint waits for the readers of that moment. Those that begin meanwhile
mostly stay out of its way; where one takes the place that it waits for, only another try helps.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

WAL_LIMIT = 64 << 20
"""Bytes of a log from which on it is emptied."""
WAIT_S = 0.1
"""How long to wait for readers. Other writers wait meanwhile."""
AGAIN_S = (1.0, 30.0)
"""Seconds until the next try: doubled after each one that failed."""

_log = logging.getLogger("lehr.store")


class Wal:
    """The write-ahead log of one writer connection. Used by the thread that may write."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        database: Path,
        *,
        limit_bytes: int = WAL_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._path = database.with_name(database.name + "-wal")
        self._limit = limit_bytes
        self._clock = clock
        self._not_before = 0.0
        self._pause = AGAIN_S[0]

    def keep_small(self) -> None:
        """Empty the log if it is too large. Call it after a commit, outside of any transaction.

        Nothing is lost if readers or the disk prevent it: it is tried again later.
        """
        if self._size() <= self._limit or self._clock() < self._not_before:
            return
        try:
            emptied = self._empty()
        except sqlite3.Error:
            _log.exception("%s could not be emptied", self._path.name)
            emptied = False
        if emptied:
            self._pause = AGAIN_S[0]
        else:
            self._not_before = self._clock() + self._pause
            self._pause = min(2 * self._pause, AGAIN_S[1])

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _empty(self) -> bool:
        run = self._connection.execute
        (patience,) = run("PRAGMA busy_timeout").fetchone()
        run(f"PRAGMA busy_timeout={int(WAIT_S * 1000)}")
        try:
            (busy, _, _) = run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            run(f"PRAGMA busy_timeout={patience}")
        return not busy
