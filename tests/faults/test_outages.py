"""Processes that freeze, hang or are locked out: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from lehr.control.reconcile import Timeouts
from lehr.errors import LehrError
from lehr_testing.faults.fault_server import FaultServer, fault_server
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
LONGER_THAN_THE_LEASE_S = Timeouts().lease_s + 8


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from fault_server(tmp_path_factory.mktemp("outages"), gpus=2)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def trains(server: FaultServer, name: str, *, steps: int):
    run = server.submit(server.spec(name, steps=steps, step_s=0.2, CHECKPOINT_EVERY=5))
    until(lambda: server.step(f"{run.id}-1") >= 5, within_s=90, what=f"{name} to train")
    return run


@pytest.mark.parametrize("who", ["server", "agent"])
def test_process_frozen_longer_than_the_lease_continues(server, who):
    run = trains(server, f"frozen-{who}", steps=450)
    pid = server.pid if who == "server" else server.ray_processes("ray::Agent")[0]
    with frozen(pid):
        before = server.step(f"{run.id}-1")
        threading.Event().wait(LONGER_THAN_THE_LEASE_S)  # The lease itself is what is waited for.
        assert server.step(f"{run.id}-1") > before + 100
    other = server.submit(server.spec(f"after-{who}", steps=3))
    assert server.ends(other, run) == ["completed", "completed"]
    assert server.client().run(run.id).attempt == 1
    server.verdict()


def test_locked_database_rejects_requests_and_recovers(server):
    run = trains(server, "locked-out", steps=150)
    # It may train before that is recorded.
    until(lambda: server.state(run) == "running", within_s=30, what="the record that it runs")
    stranger = sqlite3.connect(server.home / "lehr.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    try:
        # It waits ten seconds for a lock, and fifteen for its turn; then it raises.
        with pytest.raises(LehrError, match=r"lehr\.db could not be written"):
            server.client().submit(server.spec("refused", steps=3))
        assert server.client().run(run.id).state == "running"  # Readers do not wait.
    finally:
        stranger.execute("ROLLBACK")
        stranger.close()
    again = server.submit(server.spec("accepted", steps=3))
    assert server.ends(run, again) == ["completed", "completed"]
    assert "refused" not in [r.name for r in server.client().runs()]
    server.verdict()
