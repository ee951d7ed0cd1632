"""The write-ahead logs stay small although some reader always has the database open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lehr.store import Store, database
from lehr_testing.stores import fresh_store, line, new_attempt, run_spec

LIMIT = 256 << 10
WRITES = 60
"""Of some 40 KiB each: over ten times the limit."""
STARTS = "SELECT count(*) FROM sqlite_master"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(database, "AGAIN_S", (0.0, 0.0))
    with fresh_store(tmp_path / "home", wal_limit_bytes=LIMIT) as opened:
        yield opened


class Relay:
    """Two readers in turns: each ends only after the other has begun, and after two commits.

    So at each commit somebody still reads an earlier state. While the writer waits for readers,
    no commit comes: after a moment they hand over without one.
    """

    def __init__(self, read: Callable[[], AbstractContextManager[Any]]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._begun = [0, 0]
        self._commits = 0
        self._over = False
        self._threads = [threading.Thread(target=self._go, args=(n,)) for n in (0, 1)]

    def committed(self) -> None:
        with self._changed:
            self._commits += 1
            self._changed.notify_all()

    def _go(self, me: int) -> None:
        while not self._over:
            with self._read(), self._changed:
                self._stay(me, self._begun[1 - me] + 1, self._commits + 2)

    def _stay(self, me: int, others: int, commits: int) -> None:
        self._begun[me] += 1
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._over or self._begun[1 - me] >= others)
        self._changed.wait_for(lambda: self._over or self._commits >= commits, 0.01)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            with self._changed:
                assert self._changed.wait_for(lambda: all(self._begun), 20)
            yield
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()
            for thread in self._threads:
                thread.join(20)


def largest_log(relay: Relay, path: Path, write: Callable[[int], object]) -> int:
    largest = 0
    with relay.running():
        for number in range(WRITES):
            write(number)
            relay.committed()
            largest = max(largest, path.stat().st_size)
    return largest


def test_log_of_the_index_stays_small_under_overlapping_readers(store: Store) -> None:
    @contextmanager
    def read() -> Iterator[None]:
        with store.index.read() as connection:
            connection.execute(STARTS).fetchall()
            yield

    attempt = new_attempt(store)
    offset = 0

    def write(number: int) -> None:
        nonlocal offset
        notice = line("notice", phase="data", message=f"{number} " + "x" * 40_000)
        offset = store.streams.append(attempt.id, "events.jsonl", offset, notice)

    seen = largest_log(Relay(read), store.home / "streams.db-wal", write)
    assert 0 < seen < 4 * LIMIT
    assert len(list(store.events.records(attempt.run_id))) == WRITES


def test_reader_that_stays_delays_a_write_once_and_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_S", 0.01)
    monkeypatch.setattr(store.db._wal, "_pause", 1000.0)
    run = store.runs.create(run_spec())
    tried: list[str] = []
    store.db._raw.set_trace_callback(
        lambda text: tried.append(text) if "wal_checkpoint" in text else None
    )
    patience = store.db._raw.execute("PRAGMA busy_timeout").fetchone()
    with store.db.read() as session:
        session.connection().exec_driver_sql(STARTS).fetchall()
        for number in range(WRITES):
            store.runs.set_tags(run.id, [f"{number}-" + "x" * 40_000])
    assert len(tried) == 1
    assert (store.home / "lehr.db-wal").stat().st_size > LIMIT
    assert store.runs.get(run.id).tags[0].startswith(f"{WRITES - 1}-")
    assert store.db._raw.execute("PRAGMA busy_timeout").fetchone() == patience
