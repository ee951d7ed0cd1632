"""A request that is sent twice is recorded once."""

from __future__ import annotations

import pytest

from lehr.errors import Conflict, UserError
from lehr.schemas.runs import RunDetail
from lehr.services.context import Context
from lehr.services.once import Operation, once
from lehr.services.submit import submit_run
from lehr_testing.api import RUN_SPEC


def submission(context: Context, **changes) -> Operation:
    return submit_run(context, {**RUN_SPEC, **changes}, {}, {})


def names(context: Context) -> list[str]:
    return [run.name for run in context.store.runs.page().items]


def failing(operation: Operation, error: Exception, *, at: str) -> Operation:
    def fail() -> RunDetail:
        raise error

    steps = {"check": operation.check, "record": operation.record, at: fail}
    return Operation(operation.name, operation.request, **steps)


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
    other_name = Operation("forks", same_request.request, same_request.check, same_request.record)
    with pytest.raises(Conflict, match="another request"):
        once(context.store, "k", other_name, status=201)
    assert names(context) == ["one"]


def test_repeated_request_is_not_validated_again(context):
    first = once(context.store, "k", submission(context), status=201)
    refused = failing(submission(context), UserError("refused"), at="check")
    assert once(context.store, "k", refused, status=201).body == first.body
    with pytest.raises(UserError, match="refused"):
        once(context.store, "new", refused, status=201)


@pytest.mark.parametrize("at", ["check", "record"])
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


def test_concurrent_request_with_the_same_key_gets_the_recorded_answer(context):
    first = submission(context)

    def check() -> None:
        first.check()
        once(context.store, "k", submission(context), status=201)

    late = Operation(first.name, first.request, check, first.record)
    assert once(context.store, "k", late, status=201).replayed
    assert names(context) == ["one"]
