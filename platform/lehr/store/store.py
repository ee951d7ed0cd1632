"""``Store``: everything that is remembered, behind one object."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from lehr import home as homes
from lehr.errors import HomeUnusable, InternalError
from lehr.filesystems import refuse_network_filesystem
from lehr.store.apply_events import EventApplier
from lehr.store.changes import Change, Changes
from lehr.store.database import Database
from lehr.store.records.attempts import Attempts
from lehr.store.records.nodes import Nodes
from lehr.store.records.rollout_progress import RolloutProgress
from lehr.store.records.rollouts import RolloutRecords
from lehr.store.records.runs import RunRecords
from lehr.store.records.sweep_progress import SweepProgress
from lehr.store.records.sweeps import SweepRecords
from lehr.store.records.transitions import Transitions
from lehr.store.records.uploads import Copies
from lehr.store.streams.replication import LOG_CAP, Streams
from lehr.store.streams.series import Curves

RESTORING = ".restoring"
"""A folder in the home while a backup is put in place; see ``lehr.store.maintenance.backup``."""

_log = logging.getLogger("lehr.store")
_open_homes: set[Path] = set()
_open_guard = threading.Lock()


class Store(
    RunRecords,
    SweepRecords,
    SweepProgress,
    RolloutRecords,
    RolloutProgress,
    Transitions,
    Attempts,
    Streams,
    Curves,
    EventApplier,
    Copies,
    Nodes,
):
    """What people asked for, what was decided, and what trainers said.

    All methods may be called from any thread. What a method returns is a copy: nothing that
    happens later changes it. What a method recorded, when it returns, survives a power cut, but
    for heartbeats, last steps and pending reasons, which are said again within seconds.

    One process holds a home's store, by the lock ``lehr.lock``; opening it takes the lock.
    """

    def __init__(
        self,
        home: Path,
        *,
        clock: Callable[[], float] = time.time,
        log_cap_bytes: int = LOG_CAP,
    ) -> None:
        self.home = homes.ensure_home(Path(home)).resolve()
        self.clock = clock
        self.log_cap_bytes = log_cap_bytes
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
            self._changes = Changes()
            self.db = Database(self.home / "lehr.db", self._changes)
            undo.callback(self.db.close)
            self._open_curves()
            self._open_streams()
            undo.callback(self._close_streams)
            self._undo = undo.pop_all()
        self._closed = False
        _log.info(
            "store opened: %s (%s), SQLite %s",
            self.home,
            filesystem or "file system unknown",
            sqlite3.sqlite_version,
        )

    @classmethod
    def open(
        cls,
        home: Path,
        *,
        clock: Callable[[], float] = time.time,
        log_cap_bytes: int = LOG_CAP,
    ) -> Self:
        """Opens the store of a home folder, making what is not there yet.

        Raises:
            HomeUnusable: another process holds it, a newer Lehr wrote it, or it is on a network
                file system.
        """
        return cls(home, clock=clock, log_cap_bytes=log_cap_bytes)

    def close(self) -> None:
        """Finishes what was handed in, and lets go of the home. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several calls as one: all of them are recorded, or none.

        Covers ``lehr.db``. Streams are their own matter: do not append to one in here.
        """
        with self.db.write(what="transaction"):
            yield

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Calls ``callback`` after each commit, in the thread that made it; it must be quick.

        Returns the function that ends the subscription.
        """
        return self._changes.subscribe(callback)

    def notify(self, change: Change) -> None:
        """Tells the subscribers of something that is not in the store, such as the cluster."""
        self._changes.publish([change])


def _claim(home: Path) -> None:
    with _open_guard:
        if home in _open_homes:
            raise InternalError(f"{home} is already open in this process")
        _open_homes.add(home)
