"""Effects of a transition or request: columns, rows, changes for subscribers, commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.control.lifecycle import Desired, RunState
from lehr.errors import Conflict, InternalError
from lehr.specs import SweepSpec, expand, load_spec
from lehr.store import Change, Store
from lehr.store.tables import RunRow
from lehr_testing.stores import begin, fresh_store, new_attempt, run_spec


def trial_of_a_sweep(store: Store) -> RunRow:
    spec = load_spec(
        {
            "kind": "sweep",
            "name": "s",
            "parameters": {"train.seed": {"values": [0, 1]}},
            "run": {"train": run_spec().model_dump(mode="json")["train"]},
        }
    )
    assert isinstance(spec, SweepSpec)
    sweep = store.sweeps.create(spec, expand(spec))
    return store.sweeps.runs(sweep.id)[0]


def both(run: RunRow) -> set[Change]:
    assert run.sweep_id is not None
    return {Change("run", run.id), Change("sweep", run.sweep_id)}


def test_an_attempt_begins_with_its_placement_and_clears_old_reasons(store: Store) -> None:
    run_id = new_attempt(store).run_id
    assert store.transitions.apply(
        run_id,
        old=RunState.STARTING,
        new=RunState.QUEUED,
        attempt=1,
        cause="node_lost",
        message="node n1 is gone",
        actor="dispatcher",
    )
    store.runs.set_pending_reasons({run_id: "needs 1 GPU"})
    assert store.runs.get(run_id).reason == "node n1 is gone"
    placement = [{"node": "n1", "gpus": [3]}, {"node": "n2", "gpus": [0, 1]}]
    attempt = begin(store, run_id, placement=placement)
    after = store.runs.get(run_id)
    assert (after.cause, after.reason, after.pending_reason) == ("placed", None, None)
    assert store.attempts.get(attempt.id).placement == placement
    row = store.transitions.of_run(run_id)[-1]
    assert (row.old, row.new, row.cause, row.actor) == (
        "queued", "starting", "placed", "dispatcher",
    )  # fmt: skip
    assert (row.attempt, row.message) == (2, None)


def test_a_transition_is_recorded_with_its_actor_cause_and_message(store: Store) -> None:
    attempt = new_attempt(store)
    store.runs.set_pending_reasons({attempt.run_id: "waits"})
    assert store.transitions.apply(
        attempt.run_id,
        old=RunState.STARTING,
        new=RunState.FAILED,
        attempt=1,
        cause="bad_config",
        message="train.steps is missing",
        actor="ada",
    )
    row = store.transitions.of_run(attempt.run_id)[-1]
    assert (row.attempt, row.old, row.new) == (1, "starting", "failed")
    assert (row.cause, row.message, row.actor) == ("bad_config", "train.steps is missing", "ada")
    run = store.runs.get(attempt.run_id)
    assert (run.cause, run.reason) == ("bad_config", "train.steps is missing")
    assert run.started_at is None, "it never ran"


@pytest.mark.parametrize(
    "column", ["number", "id", "state", "attempt", "spec", "sweep_id", "nonsense"]
)
def test_a_transition_refuses_columns_that_it_must_not_set(store: Store, column: str) -> None:
    attempt = new_attempt(store)
    with pytest.raises(InternalError, match=f"cannot set {column}$"):
        store.transitions.apply(
            attempt.run_id,
            old=RunState.STARTING,
            new=RunState.FAILED,
            attempt=1,
            cause="x",
            actor="test",
            set={column: 1, "preemptions": 1},
        )
    assert store.runs.get(attempt.run_id).state == "starting"


def test_each_write_to_a_trial_is_published_as_a_change_of_run_and_sweep(store: Store) -> None:
    run = trial_of_a_sweep(store)
    changes: list[Change] = []
    store.subscribe(changes.append)

    def published() -> set[Change]:
        found = set(changes)
        changes.clear()
        return found

    store.runs.set_pending_reasons({run.id: "needs 1 GPU"})
    assert published() == both(run)
    begin(store, run.id)
    assert published() == both(run)
    store.requests.order_checkpoint(run.id)
    assert published() == both(run)
    store.requests.set_desired(run.id, Desired.CANCEL, actor="ada")
    assert published() == both(run)
    store.requests.set_desired(run.id, Desired.CANCEL, actor="ada")
    assert published() == set(), "it was cancelled before"
    assert store.transitions.apply(
        run.id,
        old=RunState.STARTING,
        new=RunState.STOPPING,
        attempt=1,
        cause="cancelled",
        actor="dispatcher",
    )
    assert published() == both(run)


def test_a_request_is_recorded_with_its_actor_time_and_message(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home", clock=lambda: 7.0) as store:
        run_id = new_attempt(store).run_id
        saved = store.requests.order_checkpoint(run_id, actor="ada", message="before the holidays")
        paused = store.requests.set_desired(
            run_id, Desired.PAUSE, actor="bob", message="the machine moves"
        )
        assert (saved.checkpoint_seq, paused.desired) == (1, "pause")
        assert store.requests.set_desired(run_id, Desired.PAUSE, actor="eve").desired == "pause"
        assert store.requests.order_checkpoint(run_id).checkpoint_seq == 2
        found = [
            (one.kind, one.actor, one.message, one.attempt, one.at, one.run_id)
            for one in store.requests.of_run(run_id)
        ]
    assert found == [
        ("checkpoint", "ada", "before the holidays", 1, 7.0, run_id),
        ("pause", "bob", "the machine moves", 1, 7.0, run_id),
        ("checkpoint", "user", None, 1, 7.0, run_id),
    ]


def test_call_in_a_transaction_sees_earlier_writes(store: Store) -> None:
    run = store.runs.create(run_spec())
    with store.transaction():
        store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
        held = store.requests.set_desired(run.id, Desired.RUN, actor="ada")
        begin(store, run.id)
        assert (held.state, held.attempt) == ("starting", 1), (
            "a row that the caller holds is updated"
        )
        store.requests.order_checkpoint(run.id)
        assert store.transitions.apply(
            run.id,
            old=RunState.STARTING,
            new=RunState.FAILED,
            attempt=1,
            cause="x",
            actor="dispatcher",
        )
        with pytest.raises(Conflict, match="has ended"):
            store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
    assert held.state == "failed"
    after = store.runs.get(run.id)
    assert (after.state, after.checkpoint_seq, after.desired) == ("failed", 1, "run")


def test_each_write_has_a_kill_point_of_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.runs.create(run_spec())
    reached: list[str] = []
    monkeypatch.setattr("lehr.base.killpoints.reached", reached.append)
    begin(store, run.id)
    store.requests.order_checkpoint(run.id)
    store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
    store.transitions.apply(
        run.id, old=RunState.STARTING, new=RunState.FAILED, attempt=1, cause="x", actor="test"
    )
    names = ["begin_attempt", "order_checkpoint", "request to pause", "transition to failed"]
    assert reached == [f"{name}: {when} commit" for name in names for when in ("before", "after")]
