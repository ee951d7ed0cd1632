"""Streams by offset: every byte is stored once, despite repeated and concurrent sends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lehr.errors import NotFound, OffsetMismatch, StoreUnavailable, UserError
from lehr.store import Change, Store
from lehr_testing.stores import (
    begin,
    crashed_copy,
    fresh_store,
    ingest,
    metrics,
    new_attempt,
    replica,
    run_spec,
)


@pytest.mark.parametrize("offset", [0, 3, 7, 100])
def test_wrong_offset_is_rejected_with_the_expected_one(store: Store, offset: int) -> None:
    attempt = new_attempt(store)
    store.streams.append(attempt.id, "rank-0.log", 0, b"12345")
    with pytest.raises(OffsetMismatch) as mismatch:
        store.streams.append(attempt.id, "rank-0.log", offset, b"12345")
    assert mismatch.value.expected == 5
    assert replica(store, attempt.id, "rank-0.log") == b"12345"


@pytest.mark.parametrize(
    "name",
    ["../events.jsonl", "a/b.log", "..", ".hidden", "", "a\0b", "x" * 101, "a..b", "ä.log", "a b"],
)
def test_stream_name_with_a_path_is_rejected(store: Store, name: str) -> None:
    attempt = new_attempt(store)
    with pytest.raises(UserError, match="not a stream's name"):
        store.streams.append(attempt.id, name, 0, b"x")
    with pytest.raises(UserError):
        store.streams.read(attempt.id, name)


@pytest.mark.parametrize("attempt_id", ["nosuchid-1", "../../etc", "x", "", "nosuchid-0"])
def test_an_attempt_that_does_not_exist_has_no_streams(store: Store, attempt_id: str) -> None:
    with pytest.raises(NotFound):
        store.streams.append(attempt_id, "events.jsonl", 0, b"x")
    assert list((store.home / "replica").iterdir()) == []


def test_a_replica_file_that_is_a_link_is_not_followed(store: Store, tmp_path: Path) -> None:
    attempt = new_attempt(store)
    folder = store.home / "replica" / attempt.id
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "rank-0.log").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreUnavailable):
        store.streams.append(attempt.id, "rank-0.log", 0, b"x")
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_log_over_its_limit_is_acknowledged_but_not_stored(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home", log_cap_bytes=10) as store:
        attempt = new_attempt(store)
        assert ingest(store, attempt.id, b"12345678", name="rank-0.log") == 8
        assert ingest(store, attempt.id, b"90abc", name="rank-0.log") == 13
        assert ingest(store, attempt.id, b"more", name="rank-0.log") == 17
        assert replica(store, attempt.id, "rank-0.log") == b"1234567890"
        (log,) = store.logs.of_run(attempt.run_id)
        assert (log.size_bytes, log.cut) == (10, True)
        assert "cut after 10 bytes" in store.logs.read(attempt.id, "rank-0.log").text
        # Events are never cut.
        events = b"".join(metrics(step, train_loss=1.0) for step in range(1, 20))
        ingest(store, attempt.id, events)
        assert replica(store, attempt.id) == events
        home = crashed_copy(store, tmp_path / "copy")
    with Store.open(home, log_cap_bytes=10) as again:
        assert again.streams.sizes(attempt.id)["rank-0.log"] == 17


def test_subscribers_are_notified_after_the_bytes_are_readable(store: Store) -> None:
    attempt = new_attempt(store)
    published: list[tuple[Change, object]] = []

    def listen(change: Change) -> None:
        if change.kind == "metrics":
            published.append((change, store.series.read(change.id, "train/loss").y))
        elif change.kind == "log":
            published.append((change, store.streams.read(f"{change.id}-1", change.name or "")))

    def broken(_: Change) -> None:
        raise ValueError("a listener's own fault")

    store.subscribe(broken)
    stop = store.subscribe(listen)
    ingest(store, attempt.id, metrics(1, train_loss=2.5))
    ingest(store, attempt.id, b"hello", name="rank-0.log")
    stop()
    ingest(store, attempt.id, metrics(2, train_loss=2.0))
    run_id = attempt.run_id
    assert published == [
        (Change("metrics", run_id, 1), [2.5]),
        (Change("log", run_id, 1, "rank-0.log", 5), b"hello"),
    ]


def test_many_senders_at_once_lose_nothing(store: Store) -> None:
    run_ids = [store.runs.create(run_spec(f"r{n}")).id for n in range(8)]
    attempts = [begin(store, run_id) for run_id in run_ids]
    failures: list[BaseException] = []

    def send(attempt_id: str) -> None:
        try:
            events, log = 0, 0
            for step in range(1, 41):
                data = metrics(step, train_loss=step / 7)
                assert store.streams.append(attempt_id, "events.jsonl", events, data) == (
                    events := events + len(data)
                )
                log = store.streams.append(attempt_id, "rank-0.log", log, f"{step}\n".encode())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=send, args=(attempt.id,)) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for attempt in attempts:
        series = store.series.read(attempt.run_id, "train/loss", exact=True)
        assert series.y == [step / 7 for step in range(1, 41)]
        assert replica(store, attempt.id, "rank-0.log") == b"".join(
            f"{step}\n".encode() for step in range(1, 41)
        )


def test_truncation_of_a_senders_file_is_recorded(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0))
    store.streams.record_gap(attempt.id, "events.jsonl", 3)
    (gap,) = store.streams.gaps(attempt.id)
    assert (gap.name, gap.offset, gap.expected) == (
        "events.jsonl",
        3,
        len(metrics(1, train_loss=5.0)),
    )
