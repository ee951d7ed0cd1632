"""``lehr.db``: one writer connection behind a lock, and a pool of read-only connections.

Every write is one ``BEGIN IMMEDIATE`` transaction with ``synchronous=FULL``: once it returns, it
survives a power cut. A reader sees the last complete commit and never waits for the writer.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, QueuePool, StaticPool, create_engine, event
from sqlalchemy.exc import DatabaseError, IntegrityError
from sqlmodel import Session
from sqlmodel.sql.expression import SelectOfScalar

from lehr.base import killpoints
from lehr.errors import InternalError, StoreUnavailable
from lehr.store.changes import Change, Changes
from lehr.store.read_only import open_read_only
from lehr.store.upkeep import migrate

WAL_LIMIT = 64 << 20  # Bytes of a log from which on it is emptied.
WAIT_S = 0.1  # How long to wait for readers. Other writers wait meanwhile.
AGAIN_S = (1.0, 30.0)  # Seconds until the next try: doubled after each one that failed.


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


T = TypeVar("T")
Clock = Callable[[], float]  # Seconds since the epoch.

BUSY_TIMEOUT_S = 10.0
"""How long to wait for a lock of another process (`lehr db backup`) before giving up."""
TURN_TIMEOUT_S = 15.0
"""How long to wait for earlier writers. Both limits together are below a client's time limit."""

_log = logging.getLogger("lehr.store")


class Database:
    def __init__(self, path: Path, changes: Changes, *, wal_limit_bytes: int = WAL_LIMIT) -> None:
        self.path = path
        self._changes = changes
        self._lock = threading.RLock()
        self._local = threading.local()
        migrate.revision(path)  # Refuses a foreign or newer file before anything is touched.
        self._raw = self._connect_writer()
        self._wal = Wal(self._raw, path, limit_bytes=wal_limit_bytes)
        self._writer = _engine(lambda: self._raw, "BEGIN IMMEDIATE", static=True)
        try:
            migrate.upgrade(self._writer, path)
        except DatabaseError as error:
            self._writer.dispose()
            raise StoreUnavailable(f"{path} cannot be opened: {error.orig}.") from error
        except BaseException:
            self._writer.dispose()
            raise
        self._readers = _engine(self._connect_reader, "BEGIN", static=False)

    def close(self) -> None:
        with self._lock:
            self._readers.dispose()
            self._writer.dispose()

    @contextmanager
    def write(self, *, durable: bool = True, what: str = "a write") -> Iterator[Session]:
        """Open a transaction that commits at the end of the block; nested ones join the outermost.

        With ``durable=False`` the commit is not flushed to disk at once. That is for rows that
        may be lost in a power cut, such as heartbeats. ``what`` names the transaction for
        ``lehr.base.killpoints``.

        Raises:
            StoreUnavailable: the database rejected the write; nothing of the block was recorded.
        """
        outer: Session | None = getattr(self._local, "session", None)
        if outer is not None:
            yield outer
            return
        with self._turn():
            changes: list[Change] = []
            self._local.changes = changes
            try:
                with Session(self._writer, expire_on_commit=False) as session:
                    if not durable:
                        self._synchronous("NORMAL")
                    self._local.session = session
                    try:
                        yield session
                        killpoints.reached(f"{what}: before commit")
                        session.commit()
                        killpoints.reached(f"{what}: after commit")
                    finally:
                        self._local.session = None
                        session.rollback()
                        if not durable:
                            self._synchronous("FULL")
            except IntegrityError as error:
                raise InternalError(f"lehr.db refused a row: {error.orig}") from error
            except DatabaseError as error:
                _log.error("lehr.db could not be written: %s", error.orig)
                raise StoreUnavailable(f"lehr.db could not be written: {error.orig}.") from error
            self._wal.keep_small()
        self._changes.publish(changes)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=TURN_TIMEOUT_S):
            _log.error("lehr.db could not be written: earlier writes took too long")
            raise StoreUnavailable(
                "lehr.db could not be written: earlier writes are still waiting.",
                hint="Another program may have locked it, or the disk may be very slow.",
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a consistent view; inside a ``write`` block of this thread, its own view."""
        outer: Session | None = getattr(self._local, "session", None)
        if outer is not None:
            yield outer
            return
        try:
            with Session(self._readers, expire_on_commit=False) as session:
                yield session
        except DatabaseError as error:
            raise StoreUnavailable(f"lehr.db could not be read: {error.orig}.") from error

    def changed(self, *changes: Change) -> None:
        """Notify subscribers after the current transaction commits; at once if there is none."""
        if getattr(self._local, "session", None) is not None:
            self._local.changes.extend(changes)
        else:
            self._changes.publish(changes)

    def optimize(self) -> None:
        """Refresh the query planner's statistics where they are out of date."""
        with self._lock:
            self._raw.execute("PRAGMA analysis_limit=400")
            self._raw.execute("PRAGMA optimize")

    def _synchronous(self, level: str) -> None:
        # Outside of any transaction: SQLite ignores the pragma inside one.
        self._raw.execute(f"PRAGMA synchronous={level}")

    def _connect_writer(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            connection.close()
            raise StoreUnavailable(f"{self.path}: SQLite cannot use its write-ahead log here.")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA journal_size_limit=16777216")
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = open_read_only(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only=ON")
        return connection


class Records:
    """A part of the store: it reads and writes rows of ``lehr.db``."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def _all(self, query: SelectOfScalar[T]) -> list[T]:
        with self._db.read() as session:
            return list(session.exec(query).all())


def _engine(connect: Any, begin: str, *, static: bool) -> Engine:
    options: dict[str, Any] = (
        {"poolclass": StaticPool}
        if static
        # The last one used is the next one taken, so that few connections fill a page cache.
        else {"poolclass": QueuePool, "pool_size": 16, "max_overflow": 64, "pool_use_lifo": True}
    )
    engine = create_engine(
        "sqlite://",
        creator=connect,
        json_serializer=partial(json.dumps, separators=(",", ":")),
        json_deserializer=json.loads,
        **options,
    )

    # The driver is in autocommit mode, so that no other statement begins a transaction.
    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine
