"""The embedded Ray head ends whole, its agents that may hide their environment included."""

from pathlib import Path

import pytest

from lehr.cluster import procfs, ray_head
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def titled(pids):
    """Those whose title Ray wrote over their environment, mark and all."""
    found = []
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if command.startswith(b"ray::"):
            found.append(pid)
    return found


def test_ending_the_head_leaves_none_of_rays_processes(tmp_path):
    head = ray_head.ensure(tmp_path / "home", 2, node="n1")
    try:
        until(
            lambda: len(titled(kin := ray_head._descendants(head.processes()))) >= 2 and kin,
            within_s=90,
            what="Ray's own agents",
        )
        # Whether a title covers the mark in a process's environment depends on how long that is:
        # these may be found by it, or only by their descent.
        kin = ray_head._descendants(head.processes())
        assert titled(kin)
    finally:
        ray_head.stop(tmp_path / "home")
    assert [pid for pid, started in kin.items() if procfs.start_time(pid) == started] == []
    assert not head.running()
