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
STEPS = 150


# tests/platform/alerting/test_watch.py has what each action does, without a cluster.
@pytest.mark.nightly
def test_alert_pauses_a_run_which_is_resumed_and_not_paused_again(server, corpus):
    # The fake's loss falls below what text allows.
    spec = faked(run_spec(corpus, "too-low", steps=STEPS), step_s=0.1)
    client = server.client()
    run = client.submit({**spec, "alerts": {"actions": {"implausible": "pause"}}})
    until(lambda: run.refresh().state == "paused", within_s=200, what="the pause")
    [alert] = [one for one in run.detail.diagnosis if one.code == "implausible"]
    assert alert.explanation
    [before] = [event for event in run.events() if event.kind == "alert"]
    assert before.data == {"action": "pause", "code": "implausible"}
    saved = [one for one in events(server.home, f"{run.id}-1") if one["kind"] == "checkpoint"][-1]
    assert saved["reason"] == "stop"
    assert 40 <= saved["step"] < STEPS

    run.resume()
    run.wait(timeout_s=200)
    assert run.state == "completed", run.reason
    assert run.view.attempt == 2
    [resumed] = [one for one in events(server.home, f"{run.id}-2") if one["kind"] == "resumed"]
    assert resumed["step"] == saved["step"]
    done = [event.data for event in run.events() if event.kind == "alert"]
    assert [one["action"] for one in done if one["code"] == "implausible"] == ["pause"]
