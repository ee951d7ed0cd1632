"""Sweeps of many trials: recorded and cancelled in few statements, their provenance stored once."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import pytest

from lehr.control.lifecycle import RunState
from lehr.specs import expand
from lehr.specs.sweep import SweepSpec
from lehr.store import Store, ids
from lehr.store.records.run_rows import provenance_digest
from lehr.store.tables import SweepRow
from lehr.store.upkeep.integrity import check
from lehr_testing.statements import transactions, written_statements
from lehr_testing.stores import begin, run_spec

FEW, MANY = 3, 60


def sweep_spec(trials: int) -> SweepSpec:
    train = run_spec("t").model_dump(mode="json", exclude_unset=True)["train"]
    return SweepSpec.model_validate(
        {
            "name": f"of-{trials}",
            "parameters": {"train.seed": {"values": list(range(trials))}},
            "run": {"train": train},
        }
    )


def created(store: Store, trials: int, **given: object) -> SweepRow:
    spec = sweep_spec(trials)
    return store.sweeps.create(spec, expand(spec), **given)  # type: ignore[arg-type]


def extended(store: Store, sweep: SweepRow, trials: int) -> None:
    known = len(store.sweeps.trials(sweep.id))
    spec = sweep_spec(known + trials)
    added = expand(spec)[known:]
    assert store.sweep_progress.add_trials(sweep.id, added, known=known, actor="user", spec=spec)


def statements_of(store: Store, act: object, *given: object) -> list[str]:
    with written_statements(store) as found:
        act(*given)  # type: ignore[operator]
    assert transactions(found) == 1
    return found


def rows(store: Store, query: str) -> list[tuple]:  # type: ignore[type-arg]
    with closing(sqlite3.connect(store.home / "lehr.db")) as connection:
        return connection.execute(query).fetchall()


# ------------------------------------------------------------------------------------- recorded


def test_statements_do_not_grow_with_the_trials_of_a_sweep(store: Store) -> None:
    few = statements_of(store, created, store, FEW)
    many = statements_of(store, created, store, MANY)
    assert len(many) == len(few) <= 12
    sweep = store.sweeps.find(f"of-{MANY}")
    few = statements_of(store, extended, store, store.sweeps.find(f"of-{FEW}"), FEW)
    many = statements_of(store, extended, store, sweep, MANY)
    assert len(many) == len(few) <= 12
    assert [one.number for one in store.sweeps.trials(sweep.id)] == list(range(1, 2 * MANY + 1))
    runs = store.sweeps.runs(sweep.id)
    assert [run.id for run in runs] == [one.run_id for one in store.sweeps.trials(sweep.id)]
    assert [run.spec["train"]["seed"] for run in runs] == list(range(2 * MANY))


def test_an_id_in_use_is_drawn_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    there = store.runs.create(run_spec())
    drawn = iter(["new1aaaa", "new1aaaa", there.id, "new2aaaa", "new3aaaa"])
    others = (f"other{number:03}" for number in itertools.count())
    monkeypatch.setattr(ids, "new_id", lambda: next(drawn, None) or next(others))
    sweep = created(store, FEW)
    runs = store.sweeps.runs(sweep.id)
    assert len({run.id for run in runs} - {there.id}) == FEW
    assert [one.run_id for one in store.sweeps.trials(sweep.id)] == [run.id for run in runs]
    assert store.runs.page().total == FEW + 1
    assert check(store.home) == []


# ----------------------------------------------------------------------------------- provenance


def test_provenance_is_stored_once_for_all_runs_that_share_it(store: Store) -> None:
    provenance = {"git": {"diff": "+" * 10_000}}
    sweep = created(store, FEW, provenance=provenance)
    extended(store, sweep, FEW)
    store.runs.create(run_spec(), provenance={**provenance, "n": 1})
    store.runs.create(run_spec(), provenance={"n": 1, **provenance})
    store.runs.create(run_spec(), provenance={})
    store.runs.create(run_spec(), provenance={"host": "n1"})
    assert sorted(rows(store, "SELECT sha256 FROM provenance")) == sorted(
        (provenance_digest(one),) for one in (provenance, {**provenance, "n": 1}, {"host": "n1"})
    )
    runs = store.sweeps.runs(sweep.id)
    assert [store.runs.provenance(run) for run in runs] == [provenance] * 2 * FEW


# ------------------------------------------------------------------------------------ cancelled


def test_statements_do_not_grow_with_the_trials_that_are_cancelled(store: Store) -> None:
    few, many = (created(store, trials) for trials in (FEW, MANY))
    first = statements_of(store, lambda: store.sweep_progress.cancel(few.id, actor="user"))
    second = statements_of(store, lambda: store.sweep_progress.cancel(many.id, actor="user"))
    assert len(first) == len(second) <= 10
    assert {run.state for run in store.sweeps.runs(many.id)} == {"cancelled"}
    again = statements_of(store, lambda: store.sweep_progress.cancel(many.id, actor="user"))
    assert not [one for one in again if one.startswith("INSERT")]
    other = created(store, MANY)
    stopped = statements_of(store, lambda: store.sweep_progress.stop(other.id, "x", actor="sweep"))
    assert len(stopped) <= 12
    assert {run.cause for run in store.sweeps.runs(other.id)} == {"sweep_stopped"}


def ended(store: Store, trials: int) -> SweepRow:
    """Return a sweep of which a third has failed, a third was deleted and a third never ran."""
    sweep = created(store, trials)
    for number, run in enumerate(store.sweeps.runs(sweep.id)):
        if number % 3 == 2:
            continue
        begin(store, run.id)
        store.transitions.apply(
            run.id,
            old=RunState.STARTING,
            new=RunState.FAILED,
            attempt=1,
            cause="user_code",
            actor="dispatcher",
            set={"user_failures": 1},
        )
        store.attempts.close(f"{run.id}-1")
        if number % 3 == 1:
            store.runs.mark_deleted(run.id)
    store.sweep_progress.stop(sweep.id, "too many failed", actor="sweep")
    return sweep


def test_statements_do_not_grow_with_the_trials_that_are_retried(store: Store) -> None:
    numbers = {}
    for trials in (FEW, MANY):
        sweep = ended(store, trials)
        with written_statements(store) as found:
            store.sweep_progress.retry_trials(sweep.id, actor="user")
        assert transactions(found) == 1
        numbers[trials] = len(found)
        runs = {run.id: run for run in store.sweeps.runs(sweep.id)}
        assert [runs[one.run_id].state for one in store.sweeps.trials(sweep.id)] == [
            "queued"
        ] * trials
    assert numbers[FEW] == numbers[MANY]
