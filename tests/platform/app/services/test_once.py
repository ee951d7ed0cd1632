"""A request that is sent twice is recorded once; each trial of a sweep is made once."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from lehr.app.services.context import Context, Operation, once
from lehr.app.services.submit import launch_sweep, submit_run
from lehr.errors import Conflict, UserError
from lehr.schemas.runs import RunDetail
from lehr.specs import sweep_expand
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC


def submission(context: Context, **changes) -> Operation:
    return submit_run(context, {**RUN_SPEC, **changes}, {}, {})


def names(context: Context) -> list[str]:
    return [run.name for run in context.store.runs.page().items]


def failing(operation: Operation, error: Exception, *, at: str) -> Operation:
    def fail(*_: object) -> str:
        raise error

    prepare = {"prepare": fail, "record": lambda: fail, "view": operation.prepare}[at]
    view = fail if at == "view" else operation.view
    return Operation(operation.name, operation.request, prepare, view)


def test_repeated_key_returns_the_first_answer_and_no_key_records_again(context):
    first = once(context.store, "k", submission(context), status=201)
    again = once(context.store, "k", submission(context), status=201)
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.status, again.body) == (201, first.body)
    assert names(context) == ["one"]
    other = once(context.store, None, submission(context), status=201)
    assert other.body["id"] != first.body["id"]
    assert names(context) == ["one", "one"]


def test_key_of_another_request_is_rejected(context):
    once(context.store, "k", submission(context), status=201)
    with pytest.raises(Conflict, match="another request"):
        once(context.store, "k", submission(context, name="two"), status=201)
    same_request = submission(context)
    other_name = dataclasses.replace(same_request, name="forks")
    with pytest.raises(Conflict, match="another request"):
        once(context.store, "k", other_name, status=201)
    assert names(context) == ["one"]


@pytest.mark.parametrize("at", ["prepare", "record"])
def test_failed_request_can_be_repeated_with_its_key(context, at):
    with pytest.raises(UserError, match="not now"):
        once(
            context.store,
            "k",
            failing(submission(context), UserError("not now"), at=at),
            status=201,
        )
    assert names(context) == []
    assert not once(context.store, "k", submission(context), status=201).replayed
    assert names(context) == ["one"]


def test_an_answer_that_could_not_be_made_is_given_to_the_next_request_of_its_key(context):
    with pytest.raises(UserError, match="not now"):
        once(
            context.store,
            "k",
            failing(submission(context), UserError("not now"), at="view"),
            status=201,
        )
    again = once(context.store, "k", submission(context), status=201)
    assert again.replayed
    assert again.body["name"] == "one"
    assert names(context) == ["one"]


def test_the_answer_is_made_outside_of_the_transaction(context):
    first = submission(context)

    def view(run_id: str) -> RunDetail:
        # A reader of its own sees only what is committed.
        with ThreadPoolExecutor() as pool:
            assert pool.submit(names, context).result() == ["one"]
        return first.view(run_id)

    looked = dataclasses.replace(first, view=view)
    assert not once(context.store, "k", looked, status=201).replayed
    assert once(context.store, "k", looked, status=201).replayed


def test_a_replay_shows_what_was_made_as_it_is_now(context):
    first = once(context.store, "k", submission(context), status=201)
    context.store.runs.set_tags(first.body["id"], ["later"])
    again = once(context.store, "k", submission(context), status=201)
    assert again.body == {**first.body, "tags": ["later"]}


def test_trials_that_were_made_to_check_the_sweep_are_recorded(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may have thousands, and each takes a fraction of a millisecond to validate."""
    make, made = sweep_expand._trials, []

    def counted(*given):
        for trial in make(*given):
            made.append(trial.number)
            yield trial

    monkeypatch.setattr(sweep_expand, "_trials", counted)
    operation = launch_sweep(context, SWEEP_SPEC, {}, {})
    sweep = once(context.store, None, operation, status=201).body["id"]
    runs = context.store.sweeps.runs(context.store.sweeps.get(sweep).id)
    assert made == [1, 2, 3] == [int(run.name.rpartition("-")[2]) for run in runs]
    digest = context.store.sweeps.get(sweep).spec["run"]["code"]["digest"]
    assert {run.spec["code"]["digest"] for run in runs} == {digest} != {None}
