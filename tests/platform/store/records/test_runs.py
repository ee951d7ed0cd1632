"""Runs and sweeps: recorded completely, found by name or id, listed in pages."""

from __future__ import annotations

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import NotFound
from lehr.specs import SweepSpec, expand
from lehr.store import Change, Store
from lehr_testing.stores import new_attempt, run_spec


def sweep_spec(name: str = "grid", rates: list[float] | None = None) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "name": name,
            "tags": ["lr"],
            "parameters": {"train.optimizer.lr": {"values": rates or [1e-4, 1e-3, 1e-2]}},
            "run": run_spec().model_dump(mode="json", exclude={"name"}),
        }
    )


def test_stored_run_reads_back_unchanged(store: Store) -> None:
    spec = run_spec("probe", project="omk", tags=["x", "y"], priority=3)
    run = store.runs.create(spec, actor="ada", provenance={"git": {"commit": "abc"}})
    again = store.runs.get(run.id)
    assert type(spec).model_validate(again.spec) == spec
    assert (again.project, again.tags, again.priority) == ("omk", ["x", "y"], 3)
    assert again.submitted_by == "ada"
    assert store.runs.provenance(again) == {"git": {"commit": "abc"}}


def test_run_is_found_by_id_name_or_id_prefix(store: Store) -> None:
    old = store.runs.create(run_spec("probe"))
    new = store.runs.create(run_spec("probe"))
    assert store.runs.find(old.id).id == old.id
    assert store.runs.find("probe").id == new.id
    assert store.runs.find(old.id[:6]).id == old.id
    named = store.runs.create(run_spec(old.id[:5]))
    assert store.runs.find(old.id[:5]).id == named.id, "a whole name comes before a part of an id"


def test_ambiguous_or_unknown_name_gets_suggestions(store: Store) -> None:
    with pytest.raises(NotFound, match="There are no runs yet"):
        store.runs.find("probe")
    store.runs.create(run_spec("probe-fp8"))
    with pytest.raises(NotFound, match="Did you mean probe-fp8"):
        store.runs.find("probe-fp9")
    with pytest.raises(NotFound):
        store.runs.find("%")


def test_few_letters_name_no_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["abcd2222", "abcd2222", "abcd3333", "xyzt4444"])  # One that is in use is no id.
    monkeypatch.setattr("lehr.store.ids.new_id", lambda: next(drawn))
    for name in ("first", "second", "third"):
        store.runs.create(run_spec(name))
    with pytest.raises(NotFound, match="ids of several runs begin with abcd: abcd3333"):
        store.runs.find("abcd")
    assert store.runs.find("XYZT").name == "third"
    with pytest.raises(NotFound, match="no run 'xyz'"):
        store.runs.find("xyz")


def test_pages_hold_every_run_once_newest_first(store: Store) -> None:
    ids = [store.runs.create(run_spec(f"r{n}")).id for n in range(25)]
    seen: list[str] = []
    cursor = None
    while True:
        page = store.runs.page(limit=10, cursor=cursor)
        assert page.total == 25 + len(seen) // 10
        seen += [run.id for run in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        store.runs.create(run_spec("late"))  # It comes before the pages that are still to be read.
    assert seen == ids[::-1]


def test_filters_narrow_the_list(store: Store) -> None:
    a = store.runs.create(run_spec("alpha", project="p1", tags=["big", "100%"]))
    b = store.runs.create(run_spec("beta", project="p2-of-beta", tags=["small"]))
    attempt = new_attempt(store, "gamma")

    def names(**filters: object) -> list[str]:
        return [run.name for run in store.runs.page(**filters).items]  # type: ignore[arg-type]

    assert names(project="p1") == ["alpha"]
    assert names(tag="small") == ["beta"]
    assert names(tag="smal") == []
    assert names(states=["starting"]) == ["gamma"]
    assert names(states=[RunState.QUEUED]) == ["beta", "alpha"]
    assert names(search="ALPH") == ["alpha"]
    assert names(search="p2-of") == ["beta"]
    assert names(search="0%") == ["alpha"]
    assert names(search="_") == []
    assert names(search=a.id[2:6].upper()) == ["alpha"]
    assert names(name="beta", project="p2-of-beta") == ["beta"]
    assert [run.id for run in store.runs.by_state([RunState.QUEUED])] == [a.id, b.id]
    assert [run.id for run in store.runs.by_ids([a.id, attempt.run_id, "none"])] == [
        attempt.run_id,
        a.id,
    ]


def test_a_sweep_is_recorded_with_all_its_trials(store: Store) -> None:
    spec = sweep_spec()
    sweep = store.sweeps.create(spec, expand(spec), actor="ada", provenance={"host": "n1"})
    trials = store.sweeps.trials(sweep.id)
    assert [trial.number for trial in trials] == [1, 2, 3]
    assert [trial.parameters["train.optimizer.lr"] for trial in trials] == [1e-4, 1e-3, 1e-2]
    runs = store.sweeps.runs(sweep.id)
    assert [run.id for run in runs] == [trial.run_id for trial in trials]
    assert [run.name for run in runs] == ["grid-1", "grid-2", "grid-3"]
    assert all(run.sweep_id == sweep.id for run in runs)
    assert all(store.runs.provenance(run) == {"host": "n1"} for run in runs)
    assert store.sweeps.find("grid").id == sweep.id
    assert store.sweeps.page(tag="lr").items[0].id == sweep.id
    assert store.runs.page(sweep_id=sweep.id).total == 3
    assert store.sweeps.trials_of_runs([runs[1].id, "none"])[runs[1].id].number == 2


def test_a_sweep_that_fails_midway_leaves_nothing(store: Store) -> None:
    spec = sweep_spec()
    trials = expand(spec)
    broken = [*trials[:2], ({"train.optimizer.lr": object()}, trials[2][1])]
    with pytest.raises(Exception, match="not JSON serializable"):
        store.sweeps.create(spec, broken)
    assert (store.sweeps.page().total, store.runs.page().total) == (0, 0)


# ----------------------------------------------------------------------------- transactions


def test_transaction_is_atomic_and_publishes_once(store: Store) -> None:
    published: list[Change] = []
    store.subscribe(published.append)
    with store.transaction():
        run = store.runs.create(run_spec())
        assert store.runs.get(run.id).id == run.id
        assert published == []
        store.idempotency.remember("key", "sha", 201, run.id)
    assert published == [Change("run", run.id)]
    with pytest.raises(ZeroDivisionError), store.transaction():  # noqa: PT012 - a block that fails
        store.runs.create(run_spec("gone"))
        raise ZeroDivisionError
    assert store.runs.page().total == 1
    assert len(published) == 1
