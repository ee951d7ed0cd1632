"""What the writer of the index keeps in memory, against what it counts again."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.store import Store
from lehr.store.streams import index, indexer, points
from lehr.store.streams.indexer import Indexer
from lehr_testing.stores import fresh_store, ingest, memory_folder, metrics, new_attempt

PIECES = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 0, 1, 4]), st.booleans()),
    min_size=1,
    max_size=12,
)
"""Steps in a piece; by how many it goes back; whether full blocks are sealed after it."""


def latest(indexer: Indexer) -> tuple[set[tuple], set[tuple]]:
    """Return the rows of the newest points as kept up to date, and as counted from all points."""
    rows = indexer.connection.execute("SELECT * FROM latest").fetchall()
    return {tuple(row) for row in rows}, {indexer._recounted(*row[:3]) for row in rows}


def advance(indexer: Indexer, attempt: str, *lines: bytes) -> None:
    stream, data = indexer.stream(attempt, "events.jsonl"), b"".join(lines)
    indexer.connection.execute("BEGIN IMMEDIATE")
    indexer.advance(stream, data, stream.stored + len(data))
    indexer.connection.execute("COMMIT")


@given(pieces=PIECES)
def test_newest_points_are_those_of_all_points(pieces) -> None:
    """Also after repeated steps, and after rows have been sealed into blocks."""
    with (
        mock.patch.multiple(points, BLOCK=6, ROWS=2),
        memory_folder() as folder,
        fresh_store(folder / "home") as store,
    ):
        attempt = new_attempt(store).id

        def play(indexer: Indexer) -> tuple[set[tuple], set[tuple]]:
            end = 1
            for count, back, seal in pieces:
                first = max(1, end - back)
                end = first + count
                lines = (metrics(step, train_loss=float(step)) for step in range(first, end))
                advance(indexer, attempt, *lines)
                if seal:
                    indexer.seal_all()
            indexer.to_seal.clear()
            return latest(indexer)

        # In one call, since the idle writer would seal in between.
        kept, counted = store._appender.call(play).result()
        assert kept == counted


def test_metrics_beyond_those_kept_in_memory_are_counted(tmp_path) -> None:
    many = {f"m{number}": 1.0 for number in range(150)}
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store).id

        def play(indexer: Indexer) -> tuple[set[tuple], set[tuple]]:
            for step in (1, 2):
                advance(indexer, attempt, metrics(step, **many))
            return latest(indexer)

        kept, counted = store._appender.call(play).result()
        assert kept == counted
        assert len(kept) > 150


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_rows_are_all_put_or_replaced(tmp_path, count: int) -> None:
    with fresh_store(tmp_path / "home") as store:

        def put(indexer: Indexer) -> list[tuple]:
            for value in (1.0, 2.0):
                rows = [(1, 1, 1, step, value) for step in range(count)]
                index.put_rows(indexer.connection, "metrics", rows)
            return indexer.connection.execute("SELECT step, value FROM metrics").fetchall()

        found = store._appender.call(put).result()
        assert found == [(step, 2.0) for step in range(count)]


@pytest.fixture
def small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(indexer, "_KNOWN", 3)
    return tmp_path / "home"


def sizes(store: Store) -> tuple[int, ...]:
    def measure(one: Indexer) -> tuple[int, ...]:
        return len(one._streams), len(one._runs), len(one._metrics)

    return store._appender.call(measure).result()


def test_streams_runs_and_metrics_beyond_the_limit_are_read_again(small_home: Path) -> None:
    with fresh_store(small_home) as store:
        attempts = [new_attempt(store, f"r{number}") for number in range(6)]
        for step in (1, 2):
            for number, attempt in enumerate(attempts):
                ingest(store, attempt.id, metrics(step, **{f"train_m{number}": float(step)}))
        assert sizes(store) == (3, 3, 3)
        for number, attempt in enumerate(attempts):
            found = store.series.read(attempt.run_id, f"train/m{number}", exact=True)
            assert list(found.y) == [1.0, 2.0]
    with Store.open(small_home) as store:
        assert all(size <= 3 for size in sizes(store))
        assert [len(store.series.metrics(one.run_id)) for one in attempts] == [1] * 6
