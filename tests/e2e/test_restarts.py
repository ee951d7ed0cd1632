"""Trainings survive ``lehr down --keep-runs``."""

from __future__ import annotations

import pytest

from lehr_testing.fakes import faked
from lehr_testing.server import marked_processes
from lehr_testing.specs import run
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]


def under_way(client, spec):
    submitted = client.submit(spec)
    until(lambda: (submitted.refresh().step or 0) >= 5, within_s=120, what="step 5")
    return submitted


def test_down_can_keep_trainings_for_the_next_server_to_adopt(server, corpus):
    r = under_way(server.client(), faked(run(corpus, "left-running", steps=200), step_s=0.1))
    down = server.cli("down", "--keep-runs")
    assert "1 training was left running" in down.stdout
    assert marked_processes(f"{r.id}-1")
    r = server.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.view.attempt) == ("completed", 1)


def test_down_saves_trainings_and_the_next_server_resumes_them(server):
    r = under_way(
        server.client(), server.spec("saved", steps=200, step_s=0.1, CHECKPOINT_EVERY=1000)
    )
    assert "1 training was saved" in server.cli("down").stdout
    r = server.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.view.attempt) == ("completed", 2)
    assert list(r.history("train/loss")["step"]) == list(range(1, 201))
