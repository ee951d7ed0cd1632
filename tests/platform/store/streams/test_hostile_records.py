"""Hostile records block neither their stream, nor others, nor the start of the server."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lehr.store import Store
from lehr.store.streams import reindex
from lehr.store.streams.indexer import Indexer
from lehr.store.upkeep import backup, integrity
from lehr_testing import hostile
from lehr_testing.stores import fresh_store, ingest, line, metrics, new_attempt, picture, same

HEALTHY = b"".join(metrics(step, train_loss=5.0 / step) for step in range(1, 6))


def with_neighbour(home: Path) -> tuple[Store, str, str]:
    """A store with a healthy run that has logged, and an attempt of another run; their ids."""
    store = fresh_store(home)
    healthy = new_attempt(store, "healthy")
    ingest(store, healthy.id, line("started"), HEALTHY)
    return store, healthy.run_id, new_attempt(store, "odd").id


def stays_usable(home: Path, healthy: str, odd: str) -> None:
    """Check that the home opens without findings, and that a rebuilt index has the same content."""
    with Store.open(home) as store:
        assert store.series.read(healthy, "train/loss").y == [5.0 / step for step in range(1, 6)]
        before = picture(store, healthy), store.streams.of_attempt(odd)
        store.event_applier.apply(odd)
        more = metrics(1_000, other_metric=1.0)
        ingest(store, odd, more)
        assert store.series.read(odd.rpartition("-")[0], "other/metric").y == [1.0]
        before = (*before[:1], store.streams.of_attempt(odd))
    assert [found for found in integrity.check(home) if found.level == "error"] == []
    backup.rebuild(home)
    with Store.open(home) as store:
        assert same(picture(store, healthy), before[0])
        assert store.streams.of_attempt(odd) == before[1]
        assert store.streams.gaps(odd) == []


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_hostile_field_of_a_record_never_stops_the_store(tmp_path: Path, kind: str) -> None:
    store, healthy, odd = with_neighbour(tmp_path / "home")
    with store:
        for what, text in hostile.lines(kind):
            before = store.streams.sizes(odd).get("events.jsonl", 0)
            assert ingest(store, odd, text) == before + len(text), what
        store.event_applier.apply(odd)
        store.events.records(odd.rpartition("-")[0])
        store.series.metrics(odd.rpartition("-")[0])
        assert store.streams.of_attempt(odd)[0].malformed > 0
    stays_usable(tmp_path / "home", healthy, odd)


class _Odd(Exception):
    """An unexpected error."""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the indexer raise at each record of the kind ``odd``, like a bug."""
    record = Indexer._record

    def refuse(self, stream, parsed):
        record(self, stream, parsed)
        if any(one.kind == "odd" for one in parsed.lines):
            raise _Odd

    monkeypatch.setattr(Indexer, "_record", refuse)


def test_line_that_cannot_be_indexed_is_malformed_and_the_others_count(
    tmp_path: Path, refusing: None, caplog: pytest.LogCaptureFixture
) -> None:
    store, healthy, odd = with_neighbour(tmp_path / "home")
    with store, caplog.at_level(logging.ERROR):
        ingest(store, odd, metrics(1, train_loss=3.0), line("odd"), metrics(2, train_loss=2.0))
        assert store.series.read(odd.rpartition("-")[0], "train/loss").y == [3.0, 2.0]
        assert [stream.malformed for stream in store.streams.of_attempt(odd)] == [1]
        assert [record.kind for _, record in store.events.records(odd.rpartition("-")[0])] == []
        [log_record] = [one for one in caplog.records if "cannot be indexed" in one.message]
        assert odd in log_record.message
    stays_usable(tmp_path / "home", healthy, odd)


def test_a_stream_that_cannot_be_read_at_start_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    store, healthy, odd = with_neighbour(home)
    store.close()
    odd_file = home / "replica" / odd / "events.jsonl"
    odd_file.parent.mkdir()
    odd_file.write_bytes(HEALTHY)
    read = reindex.Replica.read

    def broken(self, attempt_id, name, offset, limit):
        if attempt_id == odd:
            raise OSError(5, "Input/output error")
        return read(self, attempt_id, name, offset, limit)

    with monkeypatch.context() as patch:
        patch.setattr(reindex.Replica, "read", broken)
        with Store.open(home) as store:
            assert [gap.expected for gap in store.streams.gaps(odd)] == [len(HEALTHY)]
            assert store.series.read(healthy, "train/loss").y == [
                5.0 / step for step in range(1, 6)
            ]
