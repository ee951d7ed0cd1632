"""The dispatcher ticks when something has changed or a limit runs out, and not in between."""

from __future__ import annotations

import math
import threading

import pytest

from lehr.cluster.dispatcher import TICK_S
from lehr.cluster.heartbeats import Alarm
from lehr.control.lifecycle import Desired
from lehr_testing.dispatching import Bench, overlooked


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
    assert due_in(bench) > TICK_S or overlooked(bench.dispatcher) == []
    bench.dispatcher.tick()
    bench.elapsed = 101.0
    bench.dispatcher.alarm.clear()
    bench.heartbeat(attempt, step=3)
    assert due_in(bench) < TICK_S
    bench.dispatcher.tick()
    assert bench.state(run)[0] == "stopping"


def test_request_of_a_person_is_looked_at_at_once(bench):
    run, _ = bench.running()
    calm(bench)
    bench.store.requests.set_desired(run, Desired.CANCEL, actor="user")
    assert due_in(bench) < TICK_S


def test_run_beyond_the_quota_waits_until_the_quota_is_raised(bench):
    bench.store.quotas.put("small", 0, actor="user")
    run = bench.waiting("one", project="small")
    other = bench.waiting("two", project="other")
    bench.tick()
    assert bench.state(run) == ("queued", 0)
    assert "the quota of project small is 0 GPUs" in (
        bench.store.runs.get(run).pending_reason or ""
    )
    assert bench.state(other) == ("starting", 1)
    bench.exited(f"{other}-1", code=0, finished={"outcome": "completed", "step": 1000})
    bench.store.quotas.put("small", 1, actor="user")
    bench.tick()
    assert bench.state(run) == ("starting", 1)


def test_earliest_moment_counts() -> None:
    now = [100.0]
    alarm = Alarm(lambda: now[0])
    assert alarm.due == math.inf
    alarm.within(5.0)
    alarm.within(10.0)
    assert alarm.due == 105.0
    alarm.within(1.0)
    assert alarm.due == 101.0
    alarm.clear()
    assert alarm.due == math.inf


def test_moment_that_has_passed_is_due_at_once() -> None:
    now = [100.0]
    alarm = Alarm(lambda: now[0])
    alarm.within(-3.0)
    assert alarm.due == 100.0
    alarm.wait()


def test_waiting_thread_is_woken_by_an_earlier_moment() -> None:
    """A later one is set already, and the thread waits for it."""
    alarm = Alarm()
    alarm.within(3600.0)
    waiter = threading.Thread(target=alarm.wait, daemon=True)
    waiter.start()
    alarm.within(0.0)
    waiter.join(timeout=30)
    assert not waiter.is_alive()
