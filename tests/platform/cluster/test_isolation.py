"""What fails for one run fails that run alone: the others start, train, stop and end as ever."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from lehr.cluster import loader
from lehr.cluster.isolation import GIVE_UP_S, Isolation
from lehr.control import step as control
from lehr.control.exits import sound_exit
from lehr.control.lifecycle import Desired, RunState
from lehr.control.step import Subject
from lehr.errors import StoreUnavailable, UserError
from lehr.store.apply_events import EventApplier
from lehr_testing.dispatching import Bench
from lehr_testing.stores import line


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch, gpus=3)
    yield made
    made.store.close()


class _Odd(Exception):
    """What nobody expected."""


def fails_for(monkeypatch, owner, name: str, about: Callable[..., str], odd: str) -> None:
    """Has ``owner.name`` raise for the odd run, and work for the others."""
    sound = getattr(owner, name)

    def fail(*args, **fields):
        if about(*args, **fields) == odd:
            raise _Odd
        return sound(*args, **fields)

    monkeypatch.setattr(owner, name, fail)


def healthy_go_on(bench: Bench, first: str, second: str) -> None:
    """One run is cancelled, another ends, and a third that waited takes their place."""
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


def given_up(bench: Bench, run_id: str, *, within: int = 8) -> None:
    """After a few tries, and not before, the run has failed by an internal error of Lehr."""
    for _ in range(within):
        bench.tick(GIVE_UP_S / 4)
    run = bench.store.runs.get(run_id)
    assert (run.state, run.cause) == ("failed", "internal")
    assert run.reason.startswith("an internal error of Lehr: ")
    assert [attempt.open for attempt in bench.store.attempts.of_run(run_id)] in ([False], [])


def old_exit(bench: Bench, attempt: str) -> None:
    """A note as a version before this one took it."""
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
    healthy_go_on(bench, first, second)
    given_up(bench, odd)
    told = [one for one in caplog.records if f"run {odd}: reading its exit failed" in one.message]
    assert len(told) == 1 + restarts


BREAKS = {
    "reading its events": (EventApplier, "_unapplied", lambda _applier, attempt: attempt),
    "reading its attempt": (loader, "open_attempt", lambda attempt, *_: attempt.id),
}


@pytest.mark.parametrize("what", ["reading its events", "reading its attempt"])
def test_a_run_that_trains_and_cannot_be_dealt_with_is_ended_alone(
    bench, monkeypatch, what, caplog
):
    (odd, attempt), (first, _), (second, _) = (bench.running(name) for name in "abc")
    fails_for(monkeypatch, *BREAKS[what], attempt)
    bench.store.streams.append(attempt, "rank-0.log", 0, b"...\n")
    bench.dispatcher._inbox.enqueue([attempt])
    for _ in range(4):
        bench.tick(0.5)
    assert bench.state(odd) == ("running", 1)
    assert [fields for op, fields in bench.asked if op == "stop"] == []
    healthy_go_on(bench, first, second)
    given_up(bench, odd)
    assert what in bench.store.runs.get(odd).reason
    # What lives of it is then unknown to the record, and is ended.
    [stop] = {fields["attempt_id"] for op, fields in bench.asked if op == "stop"} - {f"{first}-1"}
    assert stop == attempt
    assert len([one for one in caplog.records if f"run {odd}: {what}" in one.message]) == 1


def test_a_request_that_cannot_be_applied_stops_no_other(bench, monkeypatch):
    (odd, _), (first, _), (second, _) = (bench.running(name) for name in "abc")
    fails_for(monkeypatch, control, "apply_request", lambda run_id, *_, **__: run_id, odd)
    bench.tick()
    healthy_go_on(bench, first, second)
    given_up(bench, odd)


def without(bench: Bench, run_id: str, part: str) -> None:
    """The run's spec as a version wrote it that did not know this part."""
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
    healthy_go_on(bench, first, second)
    given_up(bench, odd)


def test_a_run_without_retries_in_its_spec_ends(bench):
    (odd, attempt), (first, _), (second, _) = (bench.running(name) for name in "abc")
    without(bench, odd, "retries")
    assert bench.exited(attempt, code=1)["closed"]
    healthy_go_on(bench, first, second)
    given_up(bench, odd)


def test_a_run_that_was_given_up_can_be_tried_again_and_given_up_again(bench):
    odd = bench.waiting("odd")
    without(bench, odd, "resources")
    given_up(bench, odd)
    bench.store.transitions.apply(
        odd, old=RunState.FAILED, new=RunState.QUEUED, attempt=0, cause="retry", actor="user"
    )
    bench.tick()
    assert bench.state(odd) == ("queued", 0)
    given_up(bench, odd)


def test_a_gang_has_no_part_beyond_its_nodes(bench):
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


def test_while_the_store_is_unavailable_no_run_is_given_up(bench, monkeypatch):
    (run, attempt), *_ = (bench.running(name) for name in "abc")
    with monkeypatch.context() as patch:

        def refuse(*_args):
            raise StoreUnavailable("The disk is full.")

        patch.setattr(EventApplier, "apply_all", refuse)
        for _ in range(8):
            bench.dispatcher._inbox.enqueue([attempt])
            with pytest.raises(StoreUnavailable):
                bench.tick(GIVE_UP_S)
    bench.tick()
    assert bench.state(run) == ("running", 1)
    assert attempt not in bench.dispatcher._inbox._attempts


def test_events_that_could_not_be_read_are_read_later(bench, monkeypatch):
    run = bench.waiting()
    bench.tick()
    started = line("started", attempt=1)
    with monkeypatch.context() as patch:
        fails_for(patch, *BREAKS["reading its events"], f"{run}-1")
        bench.store.streams.append(f"{run}-1", "events.jsonl", 0, started)
        bench.tick()
        assert bench.state(run) == ("starting", 1)
    bench.tick()
    assert bench.state(run) == ("running", 1)


# ---------------------------------------------------------------------------------- isolation


R1 = Subject("run", "r1")


class Given:
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


def test_a_run_is_given_up_after_a_few_tries_and_some_seconds():
    given = Given()
    given.fail(_Odd(), times=4)
    assert given.ended == []
    assert given.isolation.tries_again(R1, "looking")
    given.fail(_Odd("why"))
    assert given.ended == [(R1, "looking failed 5 times: _Odd('why')")]
    assert not given.isolation.tries_again(R1, "looking")


def test_many_tries_in_a_moment_are_no_reason():
    given = Given()
    given.fail(_Odd(), times=50, seconds=0.1)
    assert given.ended == []


def test_one_success_resets_the_failure_count():
    given = Given()
    given.fail(_Odd(), times=4)
    assert given.isolation.do(R1, "looking", lambda: None)
    given.fail(_Odd(), times=4)
    assert given.ended == []


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError()])
def test_what_the_machine_lacks_ends_no_run(error, caplog):
    given = Given()
    given.fail(error, times=50)
    assert given.ended == []
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) == 1


def test_a_run_that_cannot_be_given_up_stops_no_other():
    isolation = Isolation(lambda *_: 1 / 0, lambda: 0.0)
    isolation._is_over = lambda _failing: True
    assert not isolation.do(R1, "looking", lambda: 1 / 0)
    assert isolation.do(Subject("run", "r2"), "looking", lambda: None)


# ---------------------------------------------------------------------------------- exit notes

SOUND = {
    "code": 1,
    "signal": None,
    "reason": "",
    "detail": "d",
    "log_tail": "Traceback",
    "started_at": 1.0,
    "ended_at": 2.0,
    "boot_id": "b",
    "finished": {"outcome": "failed", "step": 3, "cause": "nan_loss", "message": "m"},
}


def test_a_sound_exit_note_is_kept_as_it_is():
    assert sound_exit(SOUND) == SOUND


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("code", value) for value in ("x", 2**63, [1], 1.5)),
        *(("signal", value) for value in ("x", 0, 2**63, {})),
        *(("reason", value) for value in (1, ["a"], "x" * 300_000, "\ud800")),
        *(("log_tail", value) for value in (7, {}, "\udfff")),
        *(("ended_at", value) for value in ("x", float("nan"), float("inf"), 10**400)),
        *(("finished", value) for value in ([1], "completed", {"outcome": "?"})),
        ("finished", {"outcome": "completed", "step": 2**63}),
        ("finished", {"outcome": "completed", "step": "abc"}),
    ],
)
def test_a_wrong_part_of_an_exit_note_is_dropped_and_named(part, value):
    found = sound_exit(SOUND | {part: value})
    [told] = found.pop("dropped")
    assert told.startswith(part)
    assert found == {name: sound for name, sound in SOUND.items() if name != part}


@pytest.mark.parametrize("said", [None, [], "x", 7])
def test_an_exit_note_that_is_no_object_is_an_empty_one(said):
    assert sound_exit(said) == {"dropped": [f"exit: {type(said).__name__} is not an object"]}


@pytest.mark.parametrize("name", ["synthetic", "parts", "node", "dropped", "delivered"])
def test_a_node_cannot_set_what_the_server_notes_itself(name):
    assert sound_exit({"code": 0, name: {"0": {}}}) == {"code": 0}
