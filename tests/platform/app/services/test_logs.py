"""The logs of a run: which attempt's is read, its lines, and what is refused."""

from __future__ import annotations

import pytest

from lehr.app.services.context import Context
from lehr.app.services.logs import attempt_with_log, read_log, search_log, whole_log
from lehr.errors import NotFound
from lehr.store.tables import RunRow
from lehr_testing import seeding

LOG = "rank-7.log"


@pytest.fixture
def run(context: Context) -> RunRow:
    """A run with one attempt, which has written two logs."""
    run = context.store.runs.create(seeding.run_spec("one"))
    attempt = seeding.start(context.store, run)
    attempt.log("first error\nall well\nsecond error\nthird error\n", rank=7)
    attempt.log("other\n", rank=8)
    return run


def test_a_log_is_read_from_an_offset_or_by_its_last_lines(context: Context, run: RunRow):
    chunk = read_log(context.store, run, LOG, None, offset=12, limit=1000)
    assert chunk.text == "all well\nsecond error\nthird error\n"
    chunk = read_log(context.store, run, LOG, 1, offset=0, limit=1000, tail=1)
    assert chunk.text == "third error\n"


def test_a_whole_log_comes_in_pieces(
    context: Context, run: RunRow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lehr.app.services.logs._PIECE", 10)
    pieces = list(whole_log(context.store, run, LOG, 1))
    assert len(pieces) > 3
    assert b"".join(pieces) == b"first error\nall well\nsecond error\nthird error\n"


def test_a_missing_log_is_answered_with_those_that_exist(context: Context, run: RunRow):
    with pytest.raises(NotFound, match=r"has no log 'rank-7\.txt'") as refused:
        attempt_with_log(context.store, run, "rank-7.txt", None)
    assert (
        refused.value.hint
        == "Did you mean rank-7.log?   It has: rank-0.log, rank-7.log, rank-8.log"
    )
    with pytest.raises(NotFound, match="attempt 7 of one") as refused:
        attempt_with_log(context.store, run, LOG, 7)
    assert refused.value.hint == "Attempts that wrote it: 1"
    fresh = context.store.runs.create(seeding.run_spec("fresh"))
    with pytest.raises(NotFound) as refused:
        attempt_with_log(context.store, fresh, LOG, None)
    assert refused.value.hint == "It has written none yet."


def test_a_search_tells_where_to_continue(context: Context, run: RunRow):
    first = search_log(context.store, run, LOG, None, "error", offset=0, limit=2)
    assert [line.text for line in first.lines] == ["first error", "second error"]
    assert first.next_offset is not None
    rest = search_log(context.store, run, LOG, None, "error", offset=first.next_offset, limit=2)
    assert [line.text for line in rest.lines] == ["third error"]
    assert rest.next_offset is None
