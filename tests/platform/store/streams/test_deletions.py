"""Deleting runs costs what these runs hold, whatever else the replica holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import Fenced, NotFound
from lehr.store import Store
from lehr.store.streams import replication
from lehr_testing.api import end
from lehr_testing.stores import fresh_store, ingest, metrics, new_attempt, next_attempt


def ended(store: Store, name: str) -> str:
    """A run that has ended, with a stream; its id."""
    attempt = new_attempt(store, name)
    ingest(store, attempt.id, metrics(1, train_loss=1.0))
    end(store, attempt.run_id, RunState.FAILED)
    return attempt.run_id


def test_deletion_removes_the_streams_of_each_attempt(tmp_path: Path) -> None:
    with fresh_store(tmp_path) as store:
        first = new_attempt(store)
        ingest(store, first.id, metrics(1, train_loss=1.0))
        store.attempts.close(first.id)
        second = next_attempt(store, first.run_id)
        ingest(store, second.id, metrics(2, train_loss=1.0))
        end(store, first.run_id, RunState.FAILED)
        store.runs.mark_deleted(first.run_id)
        assert store.streams.forget(first.run_id) > 0
        assert list((tmp_path / "replica").iterdir()) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_streams_of_a_deleted_run_stay_closed(tmp_path: Path, restarted: bool) -> None:
    store = fresh_store(tmp_path)
    run_id = ended(store, "one")
    store.runs.mark_deleted(run_id)
    store.streams.forget(run_id)
    if restarted:
        store.close()
        store = Store.open(tmp_path)
    with store:
        for _ in range(2):
            with pytest.raises(Fenced, match="was deleted"):
                store.streams.append(f"{run_id}-1", "events.jsonl", 0, b"{}\n")
        assert not (tmp_path / "replica" / f"{run_id}-1").exists()


def test_run_that_is_deleted_while_an_append_looks_it_up_is_closed_for_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_store(tmp_path) as store:
        run_id = ended(store, "one")
        store.streams._open.clear()
        real = store.attempts.of_deleted_run

        def deleted_after_the_look(attempt_id: str) -> bool:
            monkeypatch.undo()
            found = real(attempt_id)
            store.runs.mark_deleted(run_id)
            store.streams.forget(run_id)
            return found

        monkeypatch.setattr(store.attempts, "of_deleted_run", deleted_after_the_look)
        store.streams.append(f"{run_id}-1", "rank-0.log", 0, b"late\n")
        with pytest.raises(Fenced, match="was deleted"):
            store.streams.append(f"{run_id}-1", "rank-0.log", 5, b"later\n")


def test_memory_of_attempts_that_sent_streams_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "_KNOWN", 3)
    with fresh_store(tmp_path) as store:
        attempts = [new_attempt(store, f"r{number}").id for number in range(6)]
        for _ in range(2):
            for attempt in attempts:
                ingest(store, attempt, metrics(1, train_loss=1.0))
        assert len(store.streams._open) == 3
        with pytest.raises(NotFound):
            store.streams.append("nothing-1", "rank-0.log", 0, b"x")
