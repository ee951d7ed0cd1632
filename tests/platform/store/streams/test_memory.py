"""What the store keeps of streams in memory is limited, however many there were."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlmodel import Session

from lehr.store import Store
from lehr.store.streams import indexer, series
from lehr_testing.stores import fresh_store, ingest, metrics, new_attempt


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(indexer, "_KNOWN", 3)
    monkeypatch.setattr(series, "_TRENDS_KEPT", 3)
    return tmp_path / "home"


def sizes(store: Store) -> tuple[int, ...]:
    def measure(one: indexer.Indexer) -> tuple[int, ...]:
        return len(one._streams), len(one._runs), len(one._metrics)

    return store._appender.call(measure).result()


def test_streams_runs_and_metrics_beyond_the_limit_are_read_again(home: Path) -> None:
    with fresh_store(home) as store:
        attempts = [new_attempt(store, f"r{number}") for number in range(6)]
        for step in (1, 2):
            for number, attempt in enumerate(attempts):
                ingest(store, attempt.id, metrics(step, **{f"train_m{number}": float(step)}))
        assert sizes(store) == (3, 3, 3)
        for number, attempt in enumerate(attempts):
            found = store.series.read(attempt.run_id, f"train/m{number}", exact=True)
            assert list(found.y) == [1.0, 2.0]
    with Store.open(home) as store:
        assert all(size <= 3 for size in sizes(store))
        assert [len(store.series.metrics(one.run_id)) for one in attempts] == [1] * 6


def test_reads_one_after_the_other_use_one_connection(home: Path) -> None:
    def connection(session: Session) -> int:
        return id(session.connection().connection.dbapi_connection)

    with fresh_store(home) as store:
        with ExitStack() as together:
            many = {connection(together.enter_context(store.db.read())) for _ in range(3)}
        assert len(many) == 3
        used = set()
        for _ in range(6):
            with store.db.read() as session:
                used.add(connection(session))
        assert len(used) == 1
