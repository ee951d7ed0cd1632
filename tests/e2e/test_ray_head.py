"""The embedded Ray head starts without a dashboard, and leaves no process."""

import signal
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.cluster import ray_head
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def titled(pids):
    """Processes whose title Ray wrote over their environment, including the mark."""
    return [pid for pid in pids if command(pid).startswith(b"ray::")]


def test_a_token_that_was_lost_is_made_again_with_a_head_that_has_it(tmp_path):
    home = tmp_path / "home"
    try:
        first = ray_head.ensure(home, 0, node="n1")
        assert ray_head.ensure(home, 0, node="n1") == first
        ray_head.token_file(home).write_bytes(b"")
        second = ray_head.ensure(home, 0, node="n1")
        assert len(ray_head.token_file(home).read_text()) == 64
        assert (first.running(), second.alive()) == (False, True)
    finally:
        ray_head.stop(home)


def test_the_head_has_no_dashboard_and_leaves_no_process(tmp_path, monkeypatch):
    sent = []

    def send(pid, number):
        sent.append((pid, number, procfs.start_time(raylet) is not None))
        return real(pid, number)

    head = ray_head.ensure(tmp_path / "home", 2, node="n1")
    try:
        until(
            lambda: len(titled(kin := procfs.descendants(head.processes()))) >= 2 and kin,
            within_s=90,
            what="Ray's own agents",
        )
        # Whether a title covers the mark in a process's environment depends on how long that is:
        # these may be found by it, or only by their descent.
        kin = procfs.descendants(head.processes())
        assert titled(kin)
        assert not [pid for pid in kin if b"dashboard/dashboard.py" in command(pid)]
        [raylet] = [pid for pid in kin if b"raylet/raylet" in command(pid).split(b"\0")[0]]
        real = procfs.send
        monkeypatch.setattr(procfs, "send", send)
    finally:
        ray_head.stop(tmp_path / "home")
    assert [pid for pid, started in kin.items() if procfs.start_time(pid) == started] == []
    assert not head.running()
    # The raylet ended by itself, and no other process was stopped before.
    assert sent[0] == (raylet, signal.SIGTERM, True)
    assert not any(raylet_lived for _, _, raylet_lived in sent[1:])
