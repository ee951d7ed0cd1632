"""Retry of a run and of a sweep, and another priority."""

from __future__ import annotations

import pytest

from lehr.app.services.context import Context, Operation, once
from lehr.app.services.requests import resume_run, retry_run, retry_sweep, set_priority
from lehr.app.services.submit import launch_sweep, submit_run
from lehr.control.lifecycle import Desired, RunState
from lehr.control.retries import SPENT
from lehr.errors import Conflict
from lehr.specs import load_spec
from lehr.store.tables import RunRow
from lehr_testing import seeding
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, begin, end


def recorded(context: Context, operation: Operation) -> str:
    return once(context.store, None, operation, status=201).body["id"]


def failed(context: Context, run_id: str) -> RunRow:
    """Fail the run, with a part of each budget used and an open request."""
    store = context.store
    begin(store, run_id)
    moved = store.transitions.apply(
        run_id,
        old=RunState.STARTING,
        new=RunState.RUNNING,
        attempt=1,
        cause="x",
        actor="x",
        set=dict.fromkeys(SPENT.values(), 2),
    )
    assert moved
    store.requests.set_desired(run_id, Desired.PAUSE, actor="user")
    end(store, run_id, RunState.FAILED)
    return store.runs.get(run_id)


def spent(run: RunRow) -> list[int]:
    return [getattr(run, field) for field in SPENT.values()]


def test_retry_restores_all_budgets_of_a_run(context):
    run_id = recorded(context, submit_run(context, RUN_SPEC, {}, {}))
    run = failed(context, run_id)
    assert spent(run) == [2, 2, 2]
    assert retry_run(context, run).state == "queued"
    after = context.store.runs.get(run_id)
    assert (after.desired, spent(after)) == (Desired.RUN, [0, 0, 0])
    assert context.dispatcher.woken == 1


def test_retry_restores_all_budgets_of_a_trial(context):
    sweep_id = recorded(context, launch_sweep(context, SWEEP_SPEC, {}, {}))
    run_id = context.store.sweeps.runs(sweep_id)[0].id
    failed(context, run_id)
    recorded(context, retry_sweep(context, context.store.sweeps.get(sweep_id)))
    after = context.store.runs.get(run_id)
    assert (after.state, after.desired, spent(after)) == ("queued", Desired.RUN, [0, 0, 0])


def test_retry_requires_a_failed_run(context):
    run = context.store.runs.get(recorded(context, submit_run(context, RUN_SPEC, {}, {})))
    with pytest.raises(Conflict, match="is queued; only a failed run can be retried"):
        retry_run(context, run)
    assert context.dispatcher.woken == 0


@pytest.mark.parametrize("act", [retry_run, resume_run])
def test_run_that_was_cancelled_goes_on_as_a_fork(context, act):
    run = context.store.runs.create(load_spec(RUN_SPEC))
    attempt = seeding.start(context.store, run)
    attempt.train(range(1, 4))
    attempt.checkpoint(3)
    attempt.end(RunState.CANCELLED, 3)
    with pytest.raises(Conflict) as refused:
        act(context, context.store.runs.get(run.id))
    assert refused.value.hint == f"To go on from a checkpoint of it: lehr fork {run.id}"


def submit(context, name):
    return context.store.runs.create(load_spec({**RUN_SPEC, "name": name}))


def test_priority_of_a_queued_run_decides_its_place_and_is_recorded(context):
    first, second = submit(context, "first"), submit(context, "second")
    woken = context.dispatcher.woken
    assert set_priority(context, second, 5).priority == 5
    assert context.dispatcher.woken == woken + 1
    assert context.store.runs.get(first.id).priority == 0
    changed = context.store.runs.get(second.id)
    assert (changed.priority, changed.spec["priority"]) == (5, 0)
    [request] = context.store.requests.of_run(second.id)
    assert (request.kind, request.message) == ("priority", "5")
    set_priority(context, changed, 5)
    assert len(context.store.requests.of_run(second.id)) == 1, "nothing has changed"


def test_priority_of_an_ended_run_is_refused(context):
    run = submit(context, "run")
    seeding.start(context.store, run).end(RunState.COMPLETED, 1)
    with pytest.raises(Conflict, match="is completed; the priority of an ended run has no effect"):
        set_priority(context, context.store.runs.get(run.id), 1)
