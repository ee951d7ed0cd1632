"""A cluster of two raylets on the loopback: one real training over both."""

from __future__ import annotations

import math

import pytest

from lehr_testing import specs
from lehr_testing.faults.networked import joined_node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("fakes"),
]


@pytest.fixture
def second(fakes):
    yield from joined_node(fakes, gpus=1)


@pytest.mark.nightly  # test_cluster_runs.py places gangs at each change.
def test_a_run_trains_over_two_nodes_as_one(fakes, second, corpus):
    spec = specs.run(corpus, "across", gpus=2, steps=3)
    spec["resources"]["nodes"] = 2
    run = fakes.client().submit(spec)
    run.wait(timeout_s=300)
    assert run.state == "completed", run.reason
    folder = fakes.runs / run.id / "attempt-1"
    assert {"exit.json", "exit-1.json"} <= {path.name for path in folder.iterdir()}
    assert {"rank-0.log", "rank-1.log"} <= {stream.name for stream in run.log_streams()}
    [started] = [event for event in run.events() if event.kind == "started"]
    assert started.data["world_size"] == 2
    losses = run.history("train/loss")["train/loss"]
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    fakes.nothing_left()
