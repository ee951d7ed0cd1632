"""Logs of processes that hold them open: moved aside when they are too large."""

from __future__ import annotations

import subprocess
import sys

from lehr.base.own_logs import rotate
from lehr_testing.waiting import until


def test_log_that_is_too_large_is_moved_aside_and_its_process_goes_on_writing(tmp_path):
    path = tmp_path / "bridge.log"
    with path.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", "print('x' * 999); input(); print('after')"],
            stdin=subprocess.PIPE,
            stdout=log,
        )
        until(lambda: path.stat().st_size == 1000, within_s=30, what="the first line")
        (tmp_path / "server.out").write_text("short")
        assert rotate(tmp_path, most_bytes=600) == ["bridge.log"]
        assert path.read_bytes() == b""
        old = tmp_path / "bridge.log.1"
        # The end is kept; only its owner may read it.
        assert old.read_bytes() == b"x" * 599 + b"\n"
        assert old.stat().st_mode & 0o777 == 0o600
        child.communicate(b"\n", timeout=30)
    assert path.read_bytes() == b"after\n"
    assert (tmp_path / "server.out").read_text() == "short"
