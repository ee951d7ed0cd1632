"""What the cache of runs reads for the queue."""

from __future__ import annotations

import pytest

from lehr.cluster.isolation import Isolation
from lehr.cluster.run_cache import AttemptCache, RunCache
from lehr.control.lifecycle import Desired, RunState
from lehr.errors import StoreUnavailable
from lehr.specs import RunSpec
from lehr_testing import seeding
from lehr_testing.statements import read_statements
from lehr_testing.stores import begin, fresh_store, run_spec


def refuse(_):
    raise StoreUnavailable("locked")


def test_slot_of_a_limited_sweep_dates_from_its_last_end(store):
    cache = RunCache(store, Isolation(give_up=lambda *_: None))

    def slots() -> dict[str, int]:
        cache.refresh()
        runs = cache.open_runs()
        return cache.slots(run.waiting for run in runs if run.waiting is not None)

    rates = [1e-4, 1e-3, 1e-2]
    spec = seeding.lr_sweep("one-by-one", rates).model_copy(update={"max_concurrent": 1})
    limited, trials = seeding.create_sweep(store, spec)
    seeding.create_sweep(store, seeding.lr_sweep("free", rates))
    first = seeding.start(store, trials[0])
    assert slots() == {limited.id: 0}
    large = store.runs.create(seeding.run_spec("large", gpus=8), actor="user")
    first.train(range(1, 3), logs=False)
    first.end(RunState.COMPLETED, step=2)
    cache.changed(trials[0].id)
    store.runs.create(seeding.run_spec("later"), actor="user")
    assert slots() == {limited.id: large.number}


def test_values_of_runs_follow_their_rows_although_the_first_tick_fails(store, monkeypatch):
    cache = RunCache(store, Isolation(give_up=lambda *_: None))
    run = store.runs.create(seeding.run_spec("one"))
    with monkeypatch.context() as patch:
        patch.setattr(store.runs, "by_state", refuse)
        with pytest.raises(StoreUnavailable):
            cache.refresh()
    cache.refresh()
    [before] = cache.open_runs()
    assert cache.open_runs() == [before]
    store.requests.set_desired(run.id, Desired.CANCEL, actor="user")
    cache.changed(run.id)
    cache.refresh()
    [after] = cache.open_runs()
    assert (before.desired, after.desired) == (Desired.RUN, Desired.CANCEL)


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

    with monkeypatch.context() as patch:
        patch.setattr(watched.store.attempts, "list_open", refuse)
        with pytest.raises(StoreUnavailable):
            watched.cache.rows()
    assert len(watched.cache.rows()) == 1


def test_trial_waits_for_the_last_stage_of_its_trunk(store):
    cache = RunCache(store, Isolation(give_up=lambda *_: None))
    stages = [{"tokens": 2560, "name": "main"}, {"tokens": 2560, "name": "wide"}]
    train = run_spec().model_dump(mode="json")["train"] | {"steps": None}
    spec = RunSpec.model_validate({"name": "trunk", "train": train | {"stages": stages}})
    trunk = store.runs.create(spec)
    trial = store.runs.create(run_spec("trial"), forked_from=trunk.id)
    cache.refresh()
    why = {run.id: run.waiting and run.waiting.pause for run in cache.open_runs()}
    assert why == {
        trunk.id: None,
        trial.id: f"waits for the end of stage wide of trunk ({trunk.id})",
    }
