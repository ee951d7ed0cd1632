"""What the cache of runs reads for the queue."""

from __future__ import annotations

from lehr.cluster.isolation import Isolation
from lehr.cluster.run_cache import RunCache
from lehr.control.lifecycle import Desired, RunState
from lehr_testing import seeding


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
