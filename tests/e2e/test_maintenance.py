"""A maintenance window on real Ray: the training saves, waits, and resumes from there."""

from __future__ import annotations

import time

import pytest

from lehr_testing.fakes import paced
from lehr_testing.server import Server, events
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 24


@pytest.fixture
def one_gpu(tmp_path):
    server = Server(tmp_path / "home", gpus=1)
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()


# tests/platform/cluster/test_maintenance.py has the decisions, by a dispatcher without Ray.
@pytest.mark.nightly
def test_training_saves_for_a_window_and_resumes_at_the_saved_step(one_gpu, corpus):
    client = one_gpu.client()
    # Neither an interval nor a best loss makes it save: only the order to stop.
    never = {"tokens": 512, "share": 0.1, "every": 1000}
    spec = run_spec(corpus, "long", steps=STEPS, checkpoint={"every": 1000}, validation=never)
    run = client.submit(paced(spec, 0.3))
    until(lambda: (run.refresh().step or 0) >= 4, within_s=200, what="it to train")
    window = client.add_maintenance(time.time(), 3600.0, note="new drivers")
    until(lambda: run.refresh().state == "queued", within_s=200, what="it to be queued again")
    assert run.view.cause == "maintenance"
    assert "has saved" in run.reason
    until(
        lambda: "new drivers" in (run.refresh().view.pending_reason or ""),
        within_s=60,
        what="the reason why it waits",
    )
    [entry] = client.queue()
    assert entry.reason.startswith("waits for the end of the maintenance of all nodes")
    assert entry.expected_start == pytest.approx(window.ends_at, abs=90)
    client.remove_maintenance(window.id)
    run.wait(timeout_s=400)
    assert run.state == "completed", run.reason
    assert run.view.attempt == 2
    steps = [int(step) for step in run.history("train/loss")["step"]]
    assert steps == list(range(1, STEPS + 1))
    before, after = (events(one_gpu.home, f"{run.id}-{number}") for number in (1, 2))
    [resumed] = [record for record in after if record["kind"] == "resumed"]
    assert resumed["step"] == max(r["step"] for r in before if r["kind"] == "metrics") >= 4
