"""The dispatcher ticks when something has changed or a limit runs out, and not in between."""

from __future__ import annotations

import pytest

from lehr.cluster.dispatcher import TICK_S
from lehr.control.lifecycle import Desired
from lehr_testing.dispatching import Bench


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.store.close()


def due_in(bench: Bench) -> float:
    return bench.dispatcher.alarm.due - bench.elapsed


def calm(bench: Bench) -> None:
    """Tick until nothing more follows."""
    bench.news()
    for _ in range(10):
        bench.tick()
        if due_in(bench) > TICK_S:
            return
    pytest.fail("it does not come to rest")


def test_run_that_trains_needs_no_tick(bench):
    run, attempt = bench.running()
    bench.heartbeat(attempt, step=1)
    calm(bench)
    assert due_in(bench) > 1e6
    for _ in range(5):
        bench.elapsed += 7.0
        bench.heartbeat(attempt, step=1)
        bench.news()
        assert due_in(bench) > 1e6
        assert bench.dispatcher.overlooked() == []
    assert bench.state(run) == ("running", 1)


def test_changed_list_of_an_agent_is_looked_at_at_once(bench):
    _, attempt = bench.running()
    calm(bench)
    bench.listed[attempt] |= {"state": "ended", "exit": {"code": 0, "signal": None}}
    bench.news()
    assert due_in(bench) < TICK_S


def test_heartbeat_that_passes_the_time_limit_is_looked_at_at_once(bench):
    run, attempt = bench.running(time_limit_s=100)
    bench.heartbeat(attempt, step=1)
    calm(bench)
    bench.elapsed = 99.0
    bench.heartbeat(attempt, step=2)
    assert due_in(bench) > TICK_S or bench.dispatcher.overlooked() == []
    bench.dispatcher.tick()
    bench.elapsed = 101.0
    bench.dispatcher.alarm.clear()
    bench.heartbeat(attempt, step=3)
    assert due_in(bench) < TICK_S
    bench.dispatcher.tick()
    assert bench.state(run)[0] == "stopping"


def test_heartbeat_after_a_long_silence_may_show_a_stall(bench):
    _, attempt = bench.running(stall_limit_s=50)
    bench.heartbeat(attempt, step=1)
    calm(bench)
    bench.elapsed += 40.0
    bench.dispatcher.alarm.clear()
    bench.heartbeat(attempt, step=1)
    assert due_in(bench) > 1e6, "an ordinary one"
    bench.elapsed += 60.0
    bench.heartbeat(attempt, step=1)
    assert due_in(bench) < TICK_S
    assert [type(one).__name__ for one in bench.dispatcher._loader.load(unread=()).attempts] == [
        "OpenAttempt"
    ]


def test_stall_is_due_when_its_limit_runs_out(bench):
    _, attempt = bench.running(stall_limit_s=50)
    bench.heartbeat(attempt, step=1)
    calm(bench)
    assert due_in(bench) == pytest.approx(50.0, abs=1.0)


def test_new_events_are_applied_within_a_second(bench):
    _, attempt = bench.running()
    calm(bench)
    offset = bench.store.streams.sizes(attempt)["events.jsonl"]
    line = b'{"kind": "metrics", "time": 2.0, "step": 1, "values": {"train/loss": 1.0}}\n'
    bench.store.streams.append(attempt, "events.jsonl", offset, line)
    assert 0 < due_in(bench) <= TICK_S


def test_request_of_a_person_is_looked_at_at_once(bench):
    run, _ = bench.running()
    calm(bench)
    bench.store.requests.set_desired(run, Desired.CANCEL, actor="user")
    assert due_in(bench) < TICK_S


def test_stop_that_is_not_obeyed_is_due_at_its_next_level(bench):
    run, attempt = bench.running()
    bench.heartbeat(attempt, step=1)
    calm(bench)
    bench.store.requests.set_desired(run, Desired.CANCEL, actor="user")
    bench.dispatcher.tick()
    asked_at = bench.elapsed
    while not any(op == "stop" for op, _ in bench.asked):
        bench.elapsed = bench.dispatcher.alarm.due
        bench.dispatcher.tick()
    assert bench.elapsed - asked_at == pytest.approx(6.0, abs=1.1)


def test_refused_start_is_due_when_it_is_tried_again(bench):
    bench.refusal = "no"
    bench.waiting()
    bench.dispatcher.tick()
    bench.dispatcher.tick()
    bench.dispatcher.tick()
    assert due_in(bench) == pytest.approx(2.0, abs=0.1)


def test_readmitted_node_is_looked_at_at_once(bench):
    calm(bench)
    bench.dispatcher.exclude_node("n1", "its fans")
    assert due_in(bench) < TICK_S
    bench.dispatcher.tick()
    [place] = bench.dispatcher._loader.load(unread=()).places
    assert place.excluded
    bench.dispatcher.readmit_node("n1")
    [place] = bench.dispatcher._loader.load(unread=()).places
    assert not place.excluded
