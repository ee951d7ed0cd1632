"""Lines of an event stream: what is indexed, and what is stored and skipped."""

from __future__ import annotations

import pytest

from lehr.store import Store
from lehr.store.streams import indexer
from lehr_testing.stores import ingest, line, metrics, new_attempt, replica
from lehr_trainer.contract.records import Evaluation, Started


def test_incomplete_line_is_indexed_when_it_is_complete(store: Store) -> None:
    attempt = new_attempt(store)
    whole = metrics(1, train_loss=5.0) + metrics(2, train_loss=4.0)
    ingest(store, attempt.id, whole[:-10])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]
    ingest(store, attempt.id, whole[-10:-1])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]
    ingest(store, attempt.id, whole[-1:])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]


MALFORMED = [
    b"not json\n",
    b"\n",
    b"[1, 2]\n",
    b'{"kind": "metrics"}\n',
    b'{"kind": 3, "time": 1.0}\n',
    b'{"kind": "notice", "time": "soon"}\n',
    b'{"kind": "metrics", "time": 1.0, "step": -1, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": true, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 1e3, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 99999999999999999999, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"": 1.0}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"a": null}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"a": true}}\n',
    b'{"kind": "checkpoint", "time": 1.0, "step": 5}\n',
    b'{"kind": "evaluation", "time": 1.0, "step": -5, "tokens": 0, "values": {"v": 1}}\n',
    b'{"kind": "started", "time": NaN}\n',
    b"\xff\xfe\x00\n",
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("bad", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_line_is_stored_counted_and_skipped(store: Store, bad: bytes) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0), bad, metrics(2, train_loss=4.0))
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]
    (stream,) = store.streams.of_attempt(attempt.id)
    assert stream.malformed == 1
    assert bad in replica(store, attempt.id)
    assert store.events.records(attempt.run_id) == []


def test_valid_values_of_a_damaged_record_count(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0, train_lr=None), metrics(2, train_loss=4))
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]
    assert [info.name for info in store.series.metrics(attempt.run_id)] == ["train/loss"]
    assert store.streams.of_attempt(attempt.id)[0].malformed == 1


def test_overlong_line_is_skipped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "MAX_LINE", 1000)
    attempt = new_attempt(store)
    for _ in range(5):
        ingest(store, attempt.id, b"x" * 300)
    ingest(store, attempt.id, b"\n" + metrics(1, train_loss=5.0))
    assert store.streams.of_attempt(attempt.id)[0].malformed == 1
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]


def test_record_kinds_of_a_newer_trainer_are_stored_and_skipped(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("hologram", 1.0, shape="cat"), line("started", 2.0, news="yes"))
    assert [type(record) for _, record in store.events.records(attempt.run_id)] == [Started]
    assert store.streams.of_attempt(attempt.id)[0].malformed == 0


def test_evaluation_is_stored_as_record_and_as_points(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(
        store,
        attempt.id,
        metrics(10, time=1.0, train_loss=5.0),
        line("evaluation", 2.0, step=10, tokens=1000, values={"val/loss": "NaN"}),
    )
    (found,) = store.events.records(attempt.run_id)
    assert isinstance(found.record, Evaluation)
    series = store.series.read(attempt.run_id, "val/loss", x_axis="tokens")
    assert (series.x, series.nonfinite) == ([1000.0], [10])
