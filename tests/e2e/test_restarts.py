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
    pytest.mark.xdist_group("restarted"),
]


def under_way(client, spec):
    submitted = client.submit(spec)
    until(lambda: (submitted.refresh().step or 0) >= 5, within_s=120, what="step 5")
    return submitted


def test_down_can_keep_trainings_for_the_next_server_to_adopt(restarted, corpus):
    r = under_way(restarted.client(), faked(run(corpus, "left-running", steps=400)))
    down = restarted.cli("down", "--keep-runs")
    assert "1 training was left running" in down.stdout
    assert marked_processes(f"{r.id}-1")
    r = restarted.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.view.attempt) == ("completed", 1)
