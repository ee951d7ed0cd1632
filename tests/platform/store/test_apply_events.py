"""Events of an attempt change its run: once, and only while the attempt is the newest."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import StoreUnavailable
from lehr.store import Change, Store, apply_events
from lehr_testing.stores import (
    crashed_copy,
    fresh_store,
    ingest,
    line,
    metrics,
    new_attempt,
    next_attempt,
)


def checkpoint(step: int, attempt: int = 1, **fields: object) -> bytes:
    values: dict[str, object] = {"size_bytes": 10, "digest": "d" * 64, "reason": "interval"}
    path = f"attempt-{attempt}/checkpoints/step-{step:08d}"
    return line("checkpoint", 100.0 + step, step=step, path=path, **(values | fields))


def removed(step: int, attempt: int = 1) -> bytes:
    path = f"attempt-{attempt}/checkpoints/step-{step:08d}"
    return line("checkpoint_removed", 200.0, step=step, path=path)


def test_started_event_sets_the_run_running_once(store: Store) -> None:
    attempt = new_attempt(store)
    store.event_applier.apply(attempt.id)
    ingest(store, attempt.id, line("started", device="cpu"))
    for _ in range(2):
        store.event_applier.apply(attempt.id)
    run = store.runs.get(attempt.run_id)
    assert (run.state, run.started_at is not None) == ("running", True)
    assert [row.new for row in store.transitions.of_run(run.id)] == [
        "queued",
        "starting",
        "running",
    ]
    row = store.transitions.of_run(attempt.run_id)[-1]
    assert (row.cause, row.actor, row.at) == ("started", "trainer", run.started_at)


def test_checkpoint_events_add_and_remove_rows(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"), checkpoint(5, val_loss=3.5), checkpoint(10))
    store.event_applier.apply(attempt.id)
    found = store.checkpoints.of_run(attempt.run_id)
    assert [(row.step, row.val_loss, row.attempt) for row in found] == [(5, 3.5, 1), (10, None, 1)]
    ingest(store, attempt.id, removed(5), removed(5), checkpoint(10, digest="e" * 64))
    store.event_applier.apply(attempt.id)
    assert [row.digest for row in store.checkpoints.of_run(attempt.run_id)] == ["e" * 64]
    assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [10]
    assert [row.removed_at for row in store.checkpoints.of_run(attempt.run_id, removed=True)] == [
        200.0,
        None,
    ]


def test_finished_event_is_stored_in_the_attempt(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"), metrics(7, train_loss=2.0))
    ingest(store, attempt.id, line("finished", 9.0, step=7, outcome="failed", cause="nan_loss"))
    store.event_applier.apply(attempt.id)
    row = store.attempts.get(attempt.id)
    assert row.finished is not None
    assert (row.finished["outcome"], row.finished["cause"]) == ("failed", "nan_loss")
    assert (row.last_step, store.runs.get(attempt.run_id).state) == (7, "running")


def test_events_of_a_superseded_attempt_are_stored_without_effect(store: Store) -> None:
    first = new_attempt(store)
    run_id = first.run_id
    second = next_attempt(store, run_id)
    ingest(store, first.id, line("started"), metrics(3, train_loss=1.0), checkpoint(3))
    store.event_applier.apply(first.id)
    assert (store.runs.get(run_id).state, store.checkpoints.of_run(run_id)) == ("starting", [])
    assert store.attempts.get(first.id).last_step == 3
    assert [record.kind for _, record in store.events.records(run_id)] == ["started", "checkpoint"]
    ingest(store, second.id, line("started"), checkpoint(5, attempt=2))
    store.event_applier.apply(second.id)
    ingest(store, first.id, removed(5, attempt=2))
    store.event_applier.apply(first.id)
    assert [row.step for row in store.checkpoints.of_run(run_id)] == [5]


def test_checkpoint_of_a_lost_attempt_counts_until_the_next_attempt(store: Store) -> None:
    attempt = new_attempt(store)
    assert store.transitions.apply(
        attempt.run_id,
        old=RunState.STARTING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        actor="dispatcher",
    )
    ingest(store, attempt.id, line("started"), checkpoint(5))
    store.event_applier.apply(attempt.id)
    assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [5]
    assert store.runs.get(attempt.run_id).state == "queued"


def test_many_threads_apply_each_event_once(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"), *[checkpoint(step) for step in range(1, 21)])
    published: list[Change] = []
    store.subscribe(published.append)
    barrier = threading.Barrier(6)

    def apply() -> None:
        barrier.wait()
        store.event_applier.apply(attempt.id)

    threads = [threading.Thread(target=apply) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert published == [Change("run", attempt.run_id)]
    assert store.runs.get(attempt.run_id).state == "running"
    known = store.checkpoints.of_run(attempt.run_id)
    assert [row.step for row in known] == list(range(1, 21))


def test_events_not_committed_before_a_crash_are_applied_after_it(tmp_path: Path) -> None:
    """The stream was stored; the process died before its events were applied."""
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        ingest(store, attempt.id, line("started"))
        store.event_applier.apply(attempt.id)
        ingest(store, attempt.id, checkpoint(5), checkpoint(10))
        home = crashed_copy(store, tmp_path / "copy")
    with Store.open(home) as store:
        store.event_applier.apply(attempt.id)
        assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [5, 10]


def test_failed_commit_applies_nothing_and_can_be_repeated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"), checkpoint(5))
    # Another process holds lehr.db for writing, longer than any writer waits.
    store.db._raw.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(store.home / "lehr.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        store.event_applier.apply(attempt.id)
    assert store.runs.get(attempt.run_id).state == "starting"
    other.execute("ROLLBACK")
    other.close()
    store.event_applier.apply(attempt.id)
    assert store.runs.get(attempt.run_id).state == "running"
    assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [5]


def test_flood_of_records_is_applied_in_parts_and_completely(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"))
    ingest(store, attempt.id, b"".join(checkpoint(step) for step in range(1, 1201)))
    calls = 0
    numbers = []
    again = [attempt.id]
    while again:
        again = []
        assert store.event_applier.apply_all([attempt.id], again=again.append) == {}
        numbers.append(len(store.checkpoints.of_run(attempt.run_id)))
        calls += 1
    assert calls == 3
    assert numbers == [499, 999, 1200]


def test_checkpoints_of_an_attempt_have_a_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apply_events, "MOST_CHECKPOINTS", 5)
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("started"), *(checkpoint(n) for n in range(1, 4)), removed(1))
    store.event_applier.apply(attempt.id)
    ingest(store, attempt.id, *(checkpoint(n) for n in range(4, 8)), removed(2))
    store.event_applier.apply(attempt.id)
    ingest(store, attempt.id, *(checkpoint(n) for n in range(8, 12)), removed(3))
    store.event_applier.apply(attempt.id)
    known = store.checkpoints.of_run(attempt.run_id, removed=True)
    assert [row.step for row in known] == [1, 2, 3, 4, 5]
    assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [4, 5]
    told = [one.message for one in caplog.records if "the most of an attempt" in one.message]
    assert len(told) == 1


@pytest.mark.parametrize("field", ["digest", "reason"])
def test_checkpoint_record_with_a_long_text_is_not_recorded(store: Store, field: str) -> None:
    attempt = new_attempt(store)
    odd = checkpoint(5, **{field: "d" * 100_000})
    ingest(store, attempt.id, line("started"), odd, checkpoint(10))
    store.event_applier.apply(attempt.id)
    assert [row.step for row in store.checkpoints.of_run(attempt.run_id)] == [10]
