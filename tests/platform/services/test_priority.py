"""Changing the priority of a run."""

import pytest

from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.services.requests import set_priority
from lehr.specs import parse_spec
from lehr_testing import seeding
from lehr_testing.api import RUN_SPEC


def submit(context, name):
    return context.store.runs.create(parse_spec({**RUN_SPEC, "name": name}))


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
