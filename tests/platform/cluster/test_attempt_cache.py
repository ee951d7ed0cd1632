"""What the cache of open attempts reads again."""

from __future__ import annotations

import pytest

from lehr.cluster.run_cache import AttemptCache
from lehr.errors import StoreUnavailable
from lehr_testing.statements import read_statements
from lehr_testing.stores import begin, fresh_store, run_spec


class Watched:
    """A cache that hears of every change, beside the store."""

    def __init__(self, store) -> None:
        self.store = store
        self.cache = AttemptCache(store)
        store.subscribe(lambda change: self.cache.changed(change) if change.kind == "run" else None)

    def agrees(self) -> bool:
        """Return whether it returns what the store does."""
        return self.cache.rows() == self.store.attempts.list_open()


@pytest.fixture
def watched(tmp_path):
    with fresh_store(tmp_path / "home") as store:
        yield Watched(store)


def test_every_change_of_an_attempt_is_seen(watched):
    store = watched.store
    runs = [store.runs.create(run_spec(f"r{n}")) for n in range(3)]
    assert watched.agrees()
    for run in runs:
        begin(store, run.id)
        assert watched.agrees()
    store.attempts.update(f"{runs[1].id}-1", dispatched_at=5.0)
    assert watched.agrees()
    store.attempts.update(f"{runs[1].id}-1", exit={"code": 1}, exited_at=6.0)
    assert watched.agrees()
    store.attempts.close(f"{runs[1].id}-1")
    assert watched.agrees()
    assert [row.run_id for row in watched.cache.rows()] == [runs[0].id, runs[2].id]


def test_nothing_is_read_while_nothing_changes(watched):
    begin(watched.store, watched.store.runs.create(run_spec("r")).id)
    watched.cache.rows()
    with read_statements(watched.store) as found:
        watched.cache.rows()
        watched.store.attempts.record_heartbeats({watched.cache.rows()[0].id: (7.0, 3)})
        watched.cache.rows()
    assert found == []


def test_change_is_read_again_after_the_store_has_failed(watched, monkeypatch):
    watched.cache.rows()
    begin(watched.store, watched.store.runs.create(run_spec("r")).id)

    def fails(run_ids=None):
        raise StoreUnavailable("locked")

    with monkeypatch.context() as patch:
        patch.setattr(watched.store.attempts, "list_open", fails)
        with pytest.raises(StoreUnavailable):
            watched.cache.rows()
    assert len(watched.cache.rows()) == 1
