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


def test_stall_is_due_when_its_limit_runs_out(bench):
    _, attempt = bench.running(stall_limit_s=50)
    bench.heartbeat(attempt, step=1)
    calm(bench)
    assert due_in(bench) == pytest.approx(50.0, abs=1.0)


def test_request_of_a_person_is_looked_at_at_once(bench):
    run, _ = bench.running()
    calm(bench)
    bench.store.requests.set_desired(run, Desired.CANCEL, actor="user")
    assert due_in(bench) < TICK_S


def test_refused_start_is_due_when_it_is_tried_again(bench):
    bench.refusal = "no"
    bench.waiting()
    bench.dispatcher.tick()
    bench.dispatcher.tick()
    bench.dispatcher.tick()
    assert due_in(bench) == pytest.approx(2.0, abs=0.1)
