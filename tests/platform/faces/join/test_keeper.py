"""The keeper of a joined machine. ``tests/faults/test_cluster.py`` has real ones."""

from __future__ import annotations

import errno
import subprocess
import threading

import pytest

from lehr.errors import ServerUnavailable
from lehr.faces.join import daemon, keeper, record
from lehr.faces.join.record import JoinRecord
from lehr_testing.server import free_port
from lehr_testing.waiting import until


@pytest.fixture
def joining(tmp_path, monkeypatch):
    """Return a function that runs a keeper whose questions to the server have these results."""
    monkeypatch.setattr(keeper, "REJOIN_BACKOFF_S", (0.0, 0.0))

    def run(*results, leaves=False):
        left = iter(results)
        stopping = threading.Event()
        made = JoinRecord("http://127.0.0.1:1", "n1", "t", gpus=1, logical=True, leaves=leaves)
        record.write(tmp_path, made)
        node = keeper.NodeKeeper(tmp_path, record=made, stopping=stopping)

        def ask(_):
            result = next(left, None)
            if result is None:
                stopping.set()
                raise ServerUnavailable("stopped")
            raise result

        monkeypatch.setattr(keeper, "ask", ask)
        node.run()
        return next(left, None)

    return run


def test_full_disk_and_lost_server_do_not_end_the_keeper(joining, caplog):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert joining(full, ServerUnavailable("no answer"), full) is None
    tries = [line for line in caplog.messages if line.startswith("cannot join")]
    assert len(tries) == 4
    assert "No space left on device" in tries[0]


def test_node_of_a_job_leaves_when_its_keeper_ends(joining, tmp_path, caplog):
    caplog.set_level("INFO")
    joining()
    assert record.read(tmp_path) is not None
    joining(leaves=True)
    assert record.read(tmp_path) is None
    # Without the server, too, its trainings are stopped: they are about to be killed.
    [line] = [line for line in caplog.messages if line.startswith("trainings: ")]
    assert "does not answer" in line


@pytest.fixture
def home(tmp_path):
    """Return the home of a machine that has joined a server which does not answer."""
    made = JoinRecord(f"http://127.0.0.1:{free_port()}", "n1", "t", gpus=1, logical=True)
    record.write(tmp_path, made)
    return tmp_path


@pytest.fixture
def started(home):
    """Start keepers of the home, as a shell and a systemd unit do; end all after the test."""
    children = []

    def start():
        with daemon.log_path(home).open("ab") as log:
            child = subprocess.Popen(daemon.command(home), stdout=log, stderr=log)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def holds(home, child):
    until(lambda: daemon.keeper_pid(home) == child.pid, within_s=60, what="it to be the keeper")


def waits(home):
    log = daemon.log_path(home)
    until(lambda: "this one waits" in log.read_text(), within_s=60, what="the second one to wait")


def test_second_keeper_of_a_home_waits_until_the_first_has_ended(home, started):
    first = started()
    holds(home, first)
    second = started()
    waits(home)
    assert daemon.keeper_pid(home) == first.pid
    daemon.stop(home)
    assert first.wait(30) == 0
    holds(home, second)
    assert second.poll() is None


def test_no_keeper_takes_over_on_a_machine_that_leaves(home, started):
    first = started()
    holds(home, first)
    second = started()
    waits(home)
    daemon.retire(home)
    assert first.wait(30) == 0
    assert second.wait(30) == keeper.NOT_JOINED
    assert daemon.keeper_pid(home) is None
