"""Trainings survive kills of the API and the agent, and ``lehr down``, without gap or duplicate."""

from __future__ import annotations

import os
import signal

import pytest

from lehr.cluster import ray_head
from lehr_testing.fakes import command, faked, gone, paced
from lehr_testing.server import alive, marked_processes
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


@pytest.mark.nightly  # test_kill_points.py kills the server at each commit.
def test_run_has_no_gap_or_duplicate_after_the_server_is_killed(restarted, corpus):
    r = under_way(restarted.client(), paced(run(corpus, "survivor", steps=400)))
    trainers = marked_processes(f"{r.id}-1")
    restarted.kill()
    path = restarted.home / "runs" / r.id / "attempt-1" / "events.jsonl"
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size, within_s=60, what="the training to continue alone")
    r = restarted.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.refresh().attempt) == ("completed", 1)
    assert list(r.history("train/loss")["step"]) == list(range(1, 401))
    kept = restarted.home / "replica" / f"{r.id}-1" / "events.jsonl"
    assert kept.read_bytes() == path.read_bytes()
    for pid in trainers:
        gone(pid)


def test_run_is_adopted_after_the_agent_is_killed(restarted, corpus):
    r = under_way(restarted.client(), faked(run(corpus, "adopted", steps=400)))
    [agent] = agent_pids(restarted)
    os.kill(agent, signal.SIGKILL)
    until(lambda: agent_pids(restarted) not in ([], [agent]), within_s=60, what="another agent")
    r.wait(timeout_s=300)
    assert (r.state, r.refresh().attempt) == ("completed", 1)
    assert list(r.history("train/loss")["step"]) == list(range(1, 401))


def agent_pids(server):
    """Lehr's own agents: Ray names a worker's process after its actor."""
    head = ray_head.recorded(server.home)
    return [pid for pid in head.processes() if command(pid).rstrip(b"\0") == b"ray::Agent"]


@pytest.mark.nightly  # test_up_defaults.py stops and resumes one too.
def test_down_saves_a_training_and_up_resumes_it(restarted, corpus):
    r = under_way(restarted.client(), paced(run(corpus, "interrupted", steps=300)))
    pid = restarted.pid
    down = restarted.cli("down")
    assert "1 training was saved" in down.stdout
    assert not alive(pid)
    assert not marked_processes(f"{r.id}-1")

    r = restarted.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.view.attempt) == ("completed", 2)
    resumed = next(event for event in r.events() if event.kind == "resumed")
    assert resumed.step >= 5
    assert list(r.history("train/loss")["step"]) == list(range(1, 301))


def test_down_can_keep_trainings_for_the_next_server_to_adopt(restarted, corpus):
    r = under_way(restarted.client(), faked(run(corpus, "left-running", steps=400)))
    down = restarted.cli("down", "--keep-runs")
    assert "1 training was left running" in down.stdout
    assert marked_processes(f"{r.id}-1")
    r = restarted.up().run(r.id)
    r.wait(timeout_s=300)
    assert (r.state, r.view.attempt) == ("completed", 1)
