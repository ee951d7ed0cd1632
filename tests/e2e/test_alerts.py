"""An alert pauses a run through the real platform, and a person resumes it."""

from __future__ import annotations

import pytest

from lehr_testing.fakes import faked
from lehr_testing.server import events
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]
STEPS = 200


# tests/platform/alerting/test_watch.py has what each action does, without a cluster.
@pytest.mark.nightly
def test_alert_pauses_a_run_which_is_resumed_and_not_paused_again(server, corpus):
    # The fake's loss stands still: high above the floor, with a rate that is far from 1e-3.
    spec = run_spec(corpus, "stands-still", steps=STEPS, optimizer={"lr": 1e-9})
    client = server.client()
    run = client.submit({**faked(spec, step_s=0.2), "alerts": {"actions": {"stagnant": "pause"}}})
    until(lambda: run.refresh().state == "paused", within_s=200, what="the pause")
    [alert] = [one for one in run.detail.diagnosis if one.code == "stagnant"]
    assert alert.explanation
    done = [event.data for event in run.events() if event.kind == "alert"]
    assert {"action": "pause", "code": "stagnant"} in done
    saved = [one for one in events(server.home, f"{run.id}-1") if one["kind"] == "checkpoint"][-1]
    assert saved["reason"] == "stop"
    assert STEPS / 2 <= saved["step"] < STEPS

    run.resume()
    run.wait(timeout_s=200)
    assert run.state == "completed", run.reason
    assert run.view.attempt == 2
    [resumed] = [one for one in events(server.home, f"{run.id}-2") if one["kind"] == "resumed"]
    assert resumed["step"] == saved["step"]
    done = [event.data for event in run.events() if event.kind == "alert"]
    assert [one["action"] for one in done if one["code"] == "stagnant"] == ["pause"]
