"""An error of one run fails only that run: the others start, train, stop and end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lehr.cluster import loader
from lehr.cluster.isolation import GIVE_UP_S, Isolation
from lehr.control.lifecycle import Desired
from lehr.control.step import Subject
from lehr.errors import StoreUnavailable, UserError
from lehr.store import Change
from lehr.store.apply_events import EventApplier
from lehr_testing.dispatching import Bench
from lehr_testing.stores import line


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch, gpus=3)
    yield made
    made.store.close()


class _Odd(Exception):
    """An unexpected error."""


def fails_for(monkeypatch, owner, name: str, about: Callable[..., str], odd: str) -> None:
    """Make ``owner.name`` raise for the odd run, and work for the others."""
    sound = getattr(owner, name)

    def fail(*args, **fields):
        if about(*args, **fields) == odd:
            raise _Odd
        return sound(*args, **fields)

    monkeypatch.setattr(owner, name, fail)


def assert_others_continue(bench: Bench, first: str, second: str) -> None:
    """Check that one run can be cancelled, another can end, and a pending third one starts."""
    waiting = bench.waiting("third")
    bench.store.requests.set_desired(first, Desired.CANCEL, actor="user")
    bench.tick()
    assert bench.state(first) == ("stopping", 1)
    bench.exited(f"{first}-1", code=None, signal=15)
    assert bench.state(first) == ("cancelled", 1)
    done = line("finished", step=1000, outcome="completed")
    bench.store.streams.append(
        f"{second}-1",
        "events.jsonl",
        bench.store.streams.sizes(f"{second}-1")["events.jsonl"],
        done,
    )
    bench.exited(f"{second}-1")
    assert bench.state(second) == ("completed", 1)
    bench.tick()
    assert bench.state(waiting) == ("starting", 1)


def assert_failed_internally(bench: Bench, run_id: str, *, within: int = 8) -> None:
    """Check that the run fails with an internal error after a few ticks."""
    for _ in range(within):
        bench.tick(GIVE_UP_S / 4)
    run = bench.store.runs.get(run_id)
    assert (run.state, run.cause) == ("failed", "internal")
    assert run.reason.startswith("an internal error of Lehr: ")
    assert [attempt.open for attempt in bench.store.attempts.of_run(run_id)] in ([False], [])


def old_exit(bench: Bench, attempt: str) -> None:
    """Record an exit report that an older version accepted."""
    bench.listed.pop(attempt)
    note = {"code": 1, "finished": {"step": "abc", "outcome": "failed"}}
    bench.store.attempts.update(attempt, exit=note, exited_at=bench.store.clock())
    bench.store.attempts.close(attempt)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_exit_report_that_cannot_be_processed_fails_only_its_run(bench, restarts, caplog):
    (odd, attempt), (first, _), (second, _) = (bench.running(name) for name in "abc")
    old_exit(bench, attempt)
    bench.tick()
    assert bench.state(odd) == ("running", 1)
    if restarts:
        bench.restart()
        bench.tick()
    assert_others_continue(bench, first, second)
    assert_failed_internally(bench, odd)
    errors = [one for one in caplog.records if f"run {odd}: reading its exit failed" in one.message]
    assert len(errors) == 1 + restarts


BREAKS = {
    "reading its events": (EventApplier, "_news", lambda _applier, position: position.attempt_id),
    "reading its attempt": (loader, "open_attempt", lambda attempt, *_: attempt.id),
}


@pytest.mark.parametrize("what", ["reading its events", "reading its attempt"])
def test_running_run_that_cannot_be_processed_fails_alone(bench, monkeypatch, what, caplog):
    (odd, attempt), (first, _), (second, _) = (bench.running(name) for name in "abc")
    fails_for(monkeypatch, *BREAKS[what], attempt)
    bench.store.streams.append(attempt, "rank-0.log", 0, b"...\n")
    bench.dispatcher._inbox.unread.add([attempt])
    for _ in range(4):
        bench.tick(0.5)
    assert bench.state(odd) == ("running", 1)
    assert [fields for op, fields in bench.asked if op == "stop"] == []
    assert_others_continue(bench, first, second)
    assert_failed_internally(bench, odd)
    assert what in bench.store.runs.get(odd).reason
    # What lives of it is then unknown to the record, and is ended.
    [stop] = {fields["attempt_id"] for op, fields in bench.asked if op == "stop"} - {f"{first}-1"}
    assert stop == attempt
    assert len([one for one in caplog.records if f"run {odd}: {what}" in one.message]) == 1


def overwrite(bench: Bench, attempt: str, column: str, value: str) -> None:
    """Write JSON that this version does not write to a column of an attempt."""
    with bench.store.db.write() as session:
        session.connection().exec_driver_sql(
            f"UPDATE attempts SET {column}=? WHERE id=?", (value, attempt)
        )
    bench.store.notify(Change("run", attempt.rpartition("-")[0]))


@pytest.mark.parametrize(
    "value", ['"n1"', '[{"gpus": [1]}]', '[{"node": "n1", "gpus": null}]', "[7]"]
)
def test_attempt_with_an_unreadable_placement_fails_alone_and_keeps_its_gpu_meanwhile(
    bench, value, caplog
):
    (odd, attempt), (first, _), (second, _) = (bench.running(name) for name in "abc")
    [gpu] = bench.listed[attempt]["gpus"]
    overwrite(bench, attempt, "placement", value)
    assert_others_continue(bench, first, second)
    started = [entry["gpus"] for name, entry in bench.listed.items() if name != attempt]
    assert [gpu] not in started
    assert_failed_internally(bench, odd)
    what = f"run {odd}: reading which GPUs it holds failed"
    assert len([one for one in caplog.records if what in one.message]) == 1


def without(bench: Bench, run_id: str, part: str) -> None:
    """Remove a part of the stored spec, as in a spec of an older version."""
    with bench.store.db.write() as session:
        session.connection().exec_driver_sql(
            f"UPDATE runs SET spec=json_remove(spec, '$.{part}') WHERE id=?", (run_id,)
        )


@pytest.mark.parametrize("part", ["resources", "env"])
def test_a_waiting_run_that_cannot_be_started_fails_and_the_next_one_starts(bench, part):
    odd = bench.waiting("odd")
    without(bench, odd, part)
    (first, _), (second, _) = bench.running("b"), bench.running("c")
    bench.tick()
    assert_others_continue(bench, first, second)
    assert_failed_internally(bench, odd)


def test_no_run_fails_while_the_store_is_unavailable(bench, monkeypatch):
    (run, attempt), *_ = (bench.running(name) for name in "abc")
    with monkeypatch.context() as patch:

        def refuse(*_args, **_fields):
            raise StoreUnavailable("The disk is full.")

        patch.setattr(EventApplier, "apply_all", refuse)
        for _ in range(8):
            bench.dispatcher._inbox.unread.add([attempt])
            with pytest.raises(StoreUnavailable):
                bench.tick(GIVE_UP_S)
    bench.tick()
    assert bench.state(run) == ("running", 1)
    assert attempt not in bench.dispatcher._inbox.unread.seen()


# ---------------------------------------------------------------------------------- isolation


R1 = Subject("run", "r1")


class Harness:
    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[tuple[str, str]] = []
        self.isolation = Isolation(lambda run, why: self.ended.append((run, why)), lambda: self.now)

    def fail(self, error: Exception, times: int = 1, seconds: float = 3.0) -> None:
        def act():
            raise error

        for _ in range(times):
            assert not self.isolation.do(R1, "looking", act)
            self.now += seconds


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (Subject("queue", ""), "the queue"),
        (Subject("node", ""), "the check of nodes"),
        (Subject("node", "n1"), "node n1"),
    ],
)
def test_lasting_fault_of_no_single_run_gives_nothing_up(subject, name, caplog):
    harness = Harness()
    for _ in range(20):
        harness.isolation.failed(subject, "planning it", _Odd("why"))
        harness.now += 3.0
    assert harness.ended == []
    assert harness.isolation.tries_again(subject, "planning it")
    assert [one.message for one in caplog.records] == [
        f"{name}: planning it failed",
        f"{name}: planning it has failed 5 times, and is tried again with each tick: _Odd('why')",
    ]


def test_exit_of_a_part_outside_the_gang_is_rejected(bench):
    run = bench.waiting("gang")
    bench.store.transitions.begin_attempt(
        run,
        placement=[{"node": "n1", "gpus": [0]}, {"node": "n2", "gpus": [0]}],
        resume_from=None,
        token_sha256="0" * 64,
    )
    with pytest.raises(UserError, match=r"node_rank is 2; .*-1 has parts 0 to 1\."):
        bench.dispatcher.on_exit(f"{run}-1", {"exit": {"code": 0}, "sizes": {}, "node_rank": 2})
    bench.tick()
    assert bench.store.attempts.get(f"{run}-1").exit is None


def test_error_while_failing_a_run_does_not_block_others():
    isolation = Isolation(lambda *_: 1 / 0, lambda: 0.0)
    isolation._is_over = lambda _failing: True
    assert not isolation.do(R1, "looking", lambda: 1 / 0)
    assert isolation.do(Subject("run", "r2"), "looking", lambda: None)
