"""A run of a higher priority on real Ray: the other one saves, waits, and resumes from there."""

from __future__ import annotations

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


# tests/platform/control/test_preemption.py has the decisions.
@pytest.mark.nightly
def test_preempted_run_saves_and_resumes_at_the_saved_step(one_gpu, corpus):
    client = one_gpu.client()
    # Neither an interval nor a best loss makes it save: only the order to stop.
    never = {"tokens": 512, "share": 0.1, "every": 1000}
    spec = run_spec(corpus, "low", steps=STEPS, checkpoint={"every": 1000}, validation=never)
    low = client.submit(paced(spec | {"preemptible": True}, 0.3))
    until(lambda: (low.refresh().step or 0) >= 4, within_s=200, what="the low one to train")
    high = client.submit(run_spec(corpus, "high", steps=4, priority=5))
    high.wait(timeout_s=300)
    assert high.state == "completed", high.reason
    low.wait(timeout_s=400)
    assert low.state == "completed", low.reason
    assert low.view.attempt == 2

    # It saved where it was, not at an interval: nothing is trained twice, and nothing is missing.
    steps = [int(step) for step in low.history("train/loss")["step"]]
    assert steps == list(range(1, STEPS + 1))
    before, after = (events(one_gpu.home, f"{low.id}-{number}") for number in (1, 2))
    [resumed] = [record for record in after if record["kind"] == "resumed"]
    trained = max(record["step"] for record in before if record["kind"] == "metrics")
    assert resumed["step"] == trained >= 4
    saved = [record for record in before if record["kind"] == "checkpoint"]
    assert [(record["step"], record["reason"]) for record in saved] == [(trained, "stop")]
