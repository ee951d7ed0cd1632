"""Deleting runs costs what these runs hold, whatever else the replica holds."""

from __future__ import annotations

import os
import pathlib
from collections import Counter
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import Fenced, NotFound
from lehr.store import Store
from lehr.store.streams import replication
from lehr_testing.api import end
from lehr_testing.stores import fresh_store, ingest, metrics, new_attempt, next_attempt


class Listings:
    """Counts how often each folder is listed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: Counter[Path] = Counter()
        for module, name in ((os, "scandir"), (os, "listdir"), (pathlib.os, "scandir")):
            self._count(module, name, monkeypatch)

    def _count(self, module, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(module, name)
        if hasattr(real, "counted"):
            return

        def counted(path="."):
            if isinstance(path, (str, Path)):
                self.of[Path(path)] += 1
            return real(path)

        counted.counted = True
        monkeypatch.setattr(module, name, counted)


def ended(store: Store, name: str) -> str:
    """A run that has ended, with a stream; its id."""
    attempt = new_attempt(store, name)
    ingest(store, attempt.id, metrics(1, train_loss=1.0))
    end(store, attempt.run_id, RunState.FAILED)
    return attempt.run_id


def test_start_lists_the_replica_the_same_number_of_times_after_many_deletions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listings_of_a_start() -> int:
        with monkeypatch.context() as patch:
            seen = Listings(patch)
            Store.open(tmp_path).close()
        return seen.of[tmp_path / "replica"]

    with fresh_store(tmp_path) as store:
        runs = [ended(store, f"r{number}") for number in range(12)]
    before = listings_of_a_start()
    with Store.open(tmp_path) as store:
        for run_id in runs[2:]:
            store.runs.mark_deleted(run_id)
            store.streams.forget(run_id)
    assert 1 <= listings_of_a_start() == before <= 2


def test_deletion_lists_only_the_folders_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_store(tmp_path) as store:
        runs = [ended(store, f"r{number}") for number in range(5)]
        replica = tmp_path / "replica"
        size = sum(path.stat().st_size for path in (replica / f"{runs[0]}-1").iterdir())
        with monkeypatch.context() as patch:
            seen = Listings(patch)
            assert store.streams.stored_bytes(runs[0]) == size > 0
            store.runs.mark_deleted(runs[0])
            assert store.streams.forget(runs[0]) == size
        assert {path for path in seen.of if path.is_relative_to(replica)} <= {
            replica / f"{runs[0]}-1"
        }
        assert store.streams.stored_bytes(runs[0]) == 0
        assert sorted(path.name for path in replica.iterdir()) == sorted(f"{r}-1" for r in runs[1:])


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
