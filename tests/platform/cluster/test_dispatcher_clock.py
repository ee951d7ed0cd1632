"""The dispatcher with a jumping clock and a stalled training, without Ray and processes.

What agents would say is told to it; what it asks of them is written down.
"""

from __future__ import annotations

import pytest

from lehr.control.liveness import Liveness
from lehr.specs import load_spec
from lehr_testing.specs import run as run_spec

DAY = 86_400.0


@pytest.mark.parametrize("jump", [DAY, -DAY, 400 * DAY])
def test_clock_jump_neither_ends_nor_restarts_a_run(bench, jump):
    run, attempt = bench.running(time_limit_s=3_600)
    assert bench.state(run)[1] == 1
    bench.heartbeat(attempt, step=1)
    bench.clock.jumped = jump
    for step in range(2, 6):
        bench.heartbeat(attempt, step=step)
        bench.tick(2.0)
    assert bench.state(run) == ("running", 1)
    assert bench.dispatcher.liveness() == {run: Liveness.OK}
    assert [op for op, _ in bench.asked] == ["start"]


def test_stall_limit_ends_the_run_with_an_infrastructure_retry(bench):
    run, attempt = bench.running(stall_limit_s=60)
    bench.heartbeat(attempt, step=7)
    bench.tick(59)
    bench.heartbeat(attempt, step=7)
    bench.tick(0.5)
    assert [op for op, _ in bench.asked] == ["start"]
    bench.tick(2)
    [(_, stop)] = [pair for pair in bench.asked if pair[0] == "stop"]
    assert (stop["stop_level"], stop["reason"]) == ("kill", "no step for 62 s: stall_limit_s is 60")
    assert bench.heartbeat(attempt, step=7)["stop_level"] == "kill"
    bench.listed.clear()
    note = {"code": None, "signal": 9, "reason": "stopped", "log_tail": stop["reason"]}
    bench.dispatcher.on_exit(attempt, {"exit": note, "sizes": {}, "node_rank": 0})
    row = bench.store.runs.get(run)
    assert (row.state, row.cause, row.infrastructure_failures) == ("queued", "stalled", 1)
    bench.tick()
    assert bench.state(run) == ("starting", 2)


def test_attempt_without_any_contact_is_lost_and_retried(bench):
    run = bench.store.runs.create(load_spec(run_spec(bench.corpus, "mute", steps=1000)))
    bench.tick()
    bench.tick(1_000)
    assert bench.store.runs.get(run.id).infrastructure_failures == 1
    assert (
        "can that node reach this server's address?"
        in bench.store.attempts.of_run(run.id)[0].exit["detail"]
    )
