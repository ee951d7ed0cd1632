"""What the cache of runs reads for the queue."""

from __future__ import annotations

from lehr.cluster.isolation import Isolation
from lehr.cluster.run_cache import CHECK_EVERY_S, RunCache
from lehr.control.lifecycle import Desired, RunState
from lehr_testing import seeding
from lehr_testing.statements import read_statements


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


def test_missed_change_is_found_by_the_check(store):
    """Only what differs is read with its spec."""
    now = [0.0]
    cache = RunCache(store, Isolation(give_up=lambda *_: None), lambda: now[0])
    runs = [store.runs.create(seeding.run_spec(f"r{n}")) for n in range(4)]
    cache.refresh()
    kept = {run.id: run for run in cache.rows(set(RunState))}
    store.requests.set_desired(runs[1].id, Desired.PAUSE, actor="user")
    store.runs.create(seeding.run_spec("new"))
    cache.refresh()
    assert {run.id: run for run in cache.rows(set(RunState))} == kept, "nobody told it"
    now[0] += CHECK_EVERY_S
    with read_statements(store) as found:
        cache.refresh()
    assert len(found) == 4, "two transactions: small columns of all, and the rows that differ"
    rows = {run.id: run for run in cache.rows(set(RunState))}
    assert len(rows) == 5
    assert rows[runs[1].id].desired == "pause"
    assert rows[runs[0].id] is kept[runs[0].id], "not read again"


def test_values_of_runs_follow_their_rows(store):
    cache = RunCache(store, Isolation(give_up=lambda *_: None))
    run = store.runs.create(seeding.run_spec("one"))
    cache.refresh()
    [before] = cache.open_runs()
    assert cache.open_runs() == [before]
    store.requests.set_desired(run.id, Desired.CANCEL, actor="user")
    cache.changed(run.id)
    cache.refresh()
    [after] = cache.open_runs()
    assert (before.desired, after.desired) == (Desired.RUN, Desired.CANCEL)
