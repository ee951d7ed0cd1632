"""``streams.db``: the index of the replica. It is large and can be rebuilt.

It has no migrations: when its version changes, or it is missing, it is rebuilt from the
replica's files. Only the appender's thread writes it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lehr.errors import LehrError, StoreUnavailable
from lehr.store.read_only import open_read_only

VERSION = 3
"""The version of the tables below and of their contents. Another version means: rebuild."""

# Each connection fills its cache with what it has ever read. More did not make anything faster: the
# kernel caches the file, too, and a commit makes a reader drop all of its own.
_WRITER_CACHE_KB = 8_192
_DRAFT_CACHE_KB = 65_536  # For a rebuild, whose transactions are large.
_READER_CACHE_KB = 2_048

_ROWS_AT_ONCE = (64, 16, 4, 1)
"""Rows of one statement: few different ones, since sqlite3 keeps each with its last values."""

TOKENS = -1
TIME = -2  # Internal metrics: each step's tokens and time, the other x axes.

_SCHEMA = """
CREATE TABLE runs (id INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE);
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

-- size: confirmed to the sender. stored: in the file. indexed: up to where lines are whole.
-- crc32: of the stored bytes as they were received; -1 where they could not be read.
CREATE TABLE streams (
  run INTEGER NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL,
  size INTEGER NOT NULL, stored INTEGER NOT NULL, indexed INTEGER NOT NULL,
  malformed INTEGER NOT NULL, crc32 INTEGER NOT NULL,
  PRIMARY KEY (run, attempt, name)
) WITHOUT ROWID;

-- One row a point, until it goes into a block. NULL is NaN.
CREATE TABLE metrics (
  run INTEGER NOT NULL, metric INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,
  value REAL,
  PRIMARY KEY (run, metric, attempt, step)
) WITHOUT ROWID;

-- Many points as arrays: float64 values, and int64 steps unless they are evenly spaced.
CREATE TABLE blocks (
  run INTEGER NOT NULL, metric INTEGER NOT NULL, attempt INTEGER NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL, count INTEGER NOT NULL,
  stride INTEGER, steps BLOB, vals BLOB NOT NULL
);
CREATE UNIQUE INDEX blocks_key ON blocks (run, metric, attempt, first);

-- The newest point of each metric of each attempt; loose: how many are not in full blocks yet.
CREATE TABLE latest (
  run INTEGER NOT NULL, metric INTEGER NOT NULL, attempt INTEGER NOT NULL,
  step INTEGER NOT NULL, value REAL, points INTEGER NOT NULL, low REAL, high REAL,
  loose INTEGER NOT NULL,
  PRIMARY KEY (run, metric, attempt)
) WITHOUT ROWID;

-- After which step an attempt goes on, and whose checkpoint it loaded (NULL: unknown).
CREATE TABLE starts (
  run INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, parent INTEGER,
  PRIMARY KEY (run, attempt)
) WITHOUT ROWID;

-- All other records, by their offset in events.jsonl; of scores.jsonl by -1 minus it.
CREATE TABLE records (
  run INTEGER NOT NULL, attempt INTEGER NOT NULL, offset INTEGER NOT NULL, ending INTEGER NOT NULL,
  kind TEXT NOT NULL, time REAL NOT NULL, body BLOB NOT NULL
);
CREATE UNIQUE INDEX records_key ON records (run, attempt, offset);
"""


_OF_VALUE = (
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
)


def is_of_value(error: Exception) -> bool:
    """Return whether the recorded value causes the error, not the disk or the database."""
    if isinstance(error, _OF_VALUE):
        return True
    return not isinstance(error, (sqlite3.Error, OSError, MemoryError, LehrError))


def open_writer(path: Path, *, durable: bool = True) -> sqlite3.Connection:
    """Open the only connection that writes. ``durable=False`` is for a draft not in use yet."""
    connection = sqlite3.connect(
        path, timeout=10.0, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
    connection.execute(f"PRAGMA cache_size=-{_WRITER_CACHE_KB if durable else _DRAFT_CACHE_KB}")
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    connection.execute("PRAGMA journal_size_limit=67108864")
    return connection


def version(path: Path) -> int | None:
    """Return the version of an index file; None if it is missing or unreadable."""
    if not path.is_file():
        return None
    with closing(open_read_only(path)) as connection:
        try:
            found = int(connection.execute("PRAGMA user_version").fetchone()[0])
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            return None
    return found


def create(path: Path, *, durable: bool = True) -> sqlite3.Connection:
    connection = open_writer(path, durable=durable)
    # The version comes last: without it an incomplete index counts as missing.
    connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={VERSION};COMMIT;")
    return connection


def settle(draft: Path, path: Path) -> None:
    """Rename a finished draft to its final name, durably."""
    flush(draft)
    draft.replace(path)
    remove(draft)


def flush(path: Path) -> None:
    """Flush a file to disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def run_number(connection: sqlite3.Connection, run_id: str) -> int:
    """Return the index's number for a run; -1 if the index has nothing of the run."""
    row = connection.execute("SELECT id FROM runs WHERE run=?", (run_id,)).fetchone()
    return int(row[0]) if row else -1


class Readers:
    """Read-only connections, each lent to one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Open a consistent view of the last commit."""
        connection = self._take()
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise StoreUnavailable(f"streams.db could not be read: {error}.") from error
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise StoreUnavailable("The store is closed.")
            if self._idle:
                return self._idle.pop()
        try:
            connection = open_read_only(
                self._path, timeout=10.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreUnavailable(f"streams.db could not be opened: {error}.") from error
        connection.execute("PRAGMA query_only=ON")
        connection.execute(f"PRAGMA cache_size=-{_READER_CACHE_KB}")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed and len(self._idle) < 16:
                self._idle.append(connection)
                return
        connection.close()


def put_rows(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, or replace those with the same key; many by each statement.

    sqlite3 gives up Python's lock for each step of a statement. A thread that steps once a row
    would wait for the lock that often, while the server answers requests. ``table`` is never input.
    """
    first = 0
    while first < len(rows):
        part = rows[first : first + next(n for n in _ROWS_AT_ONCE if n <= len(rows) - first)]
        first += len(part)
        marks = ",".join(["(" + ",".join("?" * len(part[0])) + ")"] * len(part))
        connection.execute(
            f"INSERT OR REPLACE INTO {table} VALUES {marks}",  # noqa: S608 - marks only
            [value for row in part for value in row],
        )
