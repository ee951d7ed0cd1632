"""``Store``: opens a home's databases and holds the parts that read and write them."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from lehr.base import home as homes
from lehr.base.filesystems import refuse_network_filesystem
from lehr.code.capsule_store import CapsuleStore
from lehr.errors import HomeUnusable, InternalError
from lehr.store.apply_events import EventApplier
from lehr.store.changes import Change, Changes
from lehr.store.database import WAL_LIMIT, Clock, Database, Wal
from lehr.store.records.access_tokens import AccessTokenRecords, AuditRecords
from lehr.store.records.attempts import Attempts
from lehr.store.records.checkpoints import Checkpoints
from lehr.store.records.cluster import ClusterSpans, NodeMinutes, Nodes, QuotaRecords
from lehr.store.records.messages import IdempotencyKeys, Outbox
from lehr.store.records.requests import Requests
from lehr.store.records.rollouts import RolloutProgress, Rollouts
from lehr.store.records.runs import Runs
from lehr.store.records.sweep_progress import SweepProgress
from lehr.store.records.sweeps import Sweeps
from lehr.store.records.transitions import Transitions
from lehr.store.streams.appender import Appender
from lehr.store.streams.events import Events
from lehr.store.streams.index import Readers
from lehr.store.streams.logs import LOG_CAP, Logs
from lehr.store.streams.reindex import open_index
from lehr.store.streams.replica import Replica
from lehr.store.streams.replication import Streams
from lehr.store.streams.series import SeriesReader
from lehr.store.upkeep import lost_record

RESTORING = ".restoring"
"""A folder in the home while a backup is put in place; see ``lehr.store.upkeep.backup``."""

_log = logging.getLogger("lehr.store")
_open_homes: set[Path] = set()
_open_guard = threading.Lock()


class Store:
    """All records of a home. Each part of the store reads and writes one kind of record.

    ``runs``, ``attempts``, ``transitions``, ``requests``, ``checkpoints``, ``sweeps``,
    ``sweep_progress``, ``rollouts``, ``rollout_progress``, ``nodes``,
    ``cluster_spans``, ``quotas``, ``access_tokens``, ``audit`` and ``idempotency`` use
    ``lehr.db``. ``streams``, ``logs``, ``events`` and ``series`` use the
    replica and its index. ``event_applier`` applies the events of a stream to ``lehr.db``.

    Threads: every method of the store and of its parts may be called from any thread. A returned
    value is a copy that later writes do not change. ``streams.append`` waits for the one
    thread that writes streams.

    Transactions: each method that writes is one transaction. When it returns, what it recorded
    survives a power cut, except for heartbeats, last steps and pending reasons, which are written
    again within seconds. ``transaction()`` joins several calls in one transaction of ``lehr.db``.
    Subscribers are called after the commit.

    Ownership: one process holds a home's store, by the lock ``lehr.lock``. Opening takes the lock,
    and ``close`` releases it. The store owns the connections, the appender's thread and the
    replica, and its parts share them: no part outlives it.
    """

    def __init__(
        self,
        home: Path,
        *,
        clock: Clock = time.time,
        log_cap_bytes: int = LOG_CAP,
        wal_limit_bytes: int = WAL_LIMIT,
        rebuilding: bool = False,
    ) -> None:
        """``rebuilding``: the record may be empty beside files of runs."""
        self.home = homes.ensure_home(Path(home)).resolve()
        self.clock = clock
        filesystem = refuse_network_filesystem(self.home)
        with ExitStack() as undo:
            homes.acquire_lock(self.home)
            undo.callback(homes.release_lock, self.home)
            _claim(self.home)
            undo.callback(_open_homes.discard, self.home)
            if (self.home / RESTORING).exists():
                raise HomeUnusable(
                    f"{self.home}: a restore was interrupted.", hint="Repeat it: lehr db restore."
                )
            if not rebuilding:
                lost_record.refuse(self.home)
            self._changes = Changes()
            self.db = Database(
                self.home / "lehr.db", self._changes, wal_limit_bytes=wal_limit_bytes
            )
            undo.callback(self.db.close)
            self._replica = Replica(homes.replica_dir(self.home))
            path = self.home / "streams.db"
            indexer = open_index(path, self._replica, clock)
            self._index_writer = indexer.connection
            undo.callback(self._index_writer.close)
            self.index = Readers(path)
            undo.callback(self.index.close)
            self._appender = Appender(
                indexer,
                self._replica,
                wal=Wal(self._index_writer, path, limit_bytes=wal_limit_bytes),
                log_cap_bytes=log_cap_bytes,
                on_rest=self._maintain,
            )
            undo.callback(self._appender.close)
            self._compose(log_cap_bytes)
            self.streams.finish_deletions(self.runs.deleted_ids())
            self._undo = undo.pop_all()
        self._closed = False
        _log.info(
            "store opened: %s (%s), SQLite %s",
            self.home,
            filesystem or "file system unknown",
            sqlite3.sqlite_version,
        )

    def _compose(self, log_cap_bytes: int) -> None:
        db, clock, index = self.db, self.clock, self.index
        self.runs = Runs(db, clock)
        self.attempts = Attempts(db, clock)
        self.transitions = Transitions(db, clock)
        self.requests = Requests(db, clock)
        self.checkpoints = Checkpoints(db, clock)
        self.sweeps = Sweeps(db, clock)
        self.sweep_progress = SweepProgress(db, clock)
        self.rollouts = Rollouts(db, clock)
        self.rollout_progress = RolloutProgress(db, clock)
        self.nodes = Nodes(db, clock)
        self.cluster_spans = ClusterSpans(db, clock)
        self.node_minutes = NodeMinutes(db, clock)
        self.quotas = QuotaRecords(db, clock)
        self.access_tokens = AccessTokenRecords(db, clock)
        self.audit = AuditRecords(db, clock)
        self.outbox = Outbox(db, clock)
        self.idempotency = IdempotencyKeys(db, clock)
        self.streams = Streams(self._replica, self._appender, index, db, self.attempts, clock)
        self.logs = Logs(self.streams, self._replica, index, self.attempts, cap_bytes=log_cap_bytes)
        self.events = Events(index)
        self.series = SeriesReader(index)
        self.event_applier = EventApplier(db, index, clock)

    def _maintain(self) -> None:
        """Refresh statistics, and remove what is kept for a time only. Called every ten minutes."""
        self.db.optimize()
        self.idempotency.expire()
        self.collect_capsules()

    def collect_capsules(self) -> list[str]:
        """Remove capsules that neither a run nor an unfinished sweep or rollout needs."""
        return CapsuleStore(self.home).collect_garbage(self.runs.capsules_in_use())

    @classmethod
    def open(cls, home: Path, **options: Any) -> Self:
        """Open the store of a home folder; create the folder and its files if they are missing.

        Raises:
            HomeUnusable: another process holds it, a newer Lehr wrote it, it is on a network
                file system, or its record is lost.
        """
        return cls(home, **options)

    def close(self) -> None:
        """Finish pending appends, close the files and release the home. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Join several calls in one transaction: all of them are recorded, or none.

        It covers ``lehr.db`` only: do not append to a stream inside it.
        """
        with self.db.write(what="transaction"):
            yield

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``callback`` after each commit, in the thread that committed. It must be quick.

        Return the function that ends the subscription.
        """
        return self._changes.subscribe(callback)

    def notify(self, change: Change) -> None:
        """Notify the subscribers of a change outside the store, such as one of the cluster."""
        self._changes.publish([change])


def _claim(home: Path) -> None:
    with _open_guard:
        if home in _open_homes:
            raise InternalError(f"{home} is already open in this process")
        _open_homes.add(home)
