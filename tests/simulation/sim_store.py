"""The real store, single-threaded. Flushes are recorded, and not made: see ``power.py``."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lehr.app.services import code
from lehr.base import killpoints
from lehr.cluster import inbox
from lehr.store import Store, ids
from lehr.store import store as store_module
from lehr.store.streams import replica
from lehr.store.streams.appender import Answer, Appender, _Append, _Call
from lehr.store.streams.indexer import Indexer
from lehr_testing.stores import fresh_store
from simulation.power import DatabaseDisk, Disk


class InlineAppender(Appender):
    """The appender in the caller's thread."""

    def __post_init__(self) -> None:
        self._flushers = ThreadPoolExecutor(1)  # Not used: a group has one append, and so one file.

    def append(self, attempt_id: str, name: str, offset: int, data: bytes, answer: Answer) -> None:
        self._append_group([_Append(attempt_id, name, offset, data, answer)])

    def call(self, act: Callable[[Indexer], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._answer(_Call(act, answer))
        return answer

    def close(self) -> None:
        while self.indexer.to_seal and not self.indexer.connection.in_transaction:
            self._seal_some()


@contextmanager
def patched(
    rng: random.Random, reached: Callable[[str], None], runs_dir: Path, disk: Disk
) -> Iterator[None]:
    """Draw ids from ``rng``, append inline, note flushes, and call ``reached`` at kill points."""
    changes: list[tuple[Any, str, Any]] = [
        (ids, "secrets", rng),
        (store_module, "Appender", InlineAppender),
        (killpoints, "reached", reached),
        (inbox, "HEARTBEATS_EVERY_S", 300.0),
        # No capsules: they are files beside the store, written before a submission names them.
        (code, "pin", lambda context, spec: spec),
        (replica, "os", disk),
        (replica, "fsync_folder", disk.fsync_folder),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with patch.dict(os.environ, {"LEHR_RUNS": str(runs_dir)}):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def open_store(home: Path, clock: Callable[[], float]) -> Store:
    return Store.open(home, clock=clock) if home.exists() else fresh_store(home, clock=clock)


def database_disks(store: Store) -> list[DatabaseDisk]:
    """Follow what of the store's databases is durable."""
    records = DatabaseDisk(store.db.path, store.db._raw)
    store.db._synchronous = records.set_level  # type: ignore[method-assign]
    return [records, DatabaseDisk(store.home / "streams.db", store._index_writer)]


def killed_copy(store: Store, home: Path, lose: Callable[[Path], object] | None = None) -> Path:
    """Move the home as a killed process leaves it; ``store`` is unusable afterwards.

    ``lose`` takes from the copy what a power cut loses.
    """
    home.mkdir(mode=0o700)
    for path in store.home.iterdir():
        if path.is_file() and path.name != "lehr.lock":
            shutil.copy(path, home / path.name)
    (store.home / "replica").rename(home / "replica")
    if lose is not None:
        lose(home)
    discard(store)
    return home


def discard(store: Store) -> None:
    """Release what the process held, without finishing its work."""
    store._closed = True
    store._appender.close = lambda: None  # type: ignore[method-assign]
    store._undo.close()
    shutil.rmtree(store.home, ignore_errors=True)
