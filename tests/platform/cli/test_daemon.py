"""`lehr up` waits for a server that works, and gives up on one that does nothing."""

from __future__ import annotations

import sys

import pytest

from lehr.cli import daemon
from lehr.cli.daemon import ServerOptions
from lehr.errors import LehrError

NEVER_ANSWERS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(daemon, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(daemon, "_IDLE_S", 0.0)
    monkeypatch.setattr(daemon, "server_command", lambda *_: NEVER_ANSWERS)


def test_server_that_works_is_awaited_and_one_that_does_nothing_is_not(
    tmp_path, impatient, monkeypatch
):
    used_s = iter([1.0, 2.0, 3.0, 3.01])
    monkeypatch.setattr(daemon, "processor_s", lambda pid: next(used_s))
    messages = []
    with pytest.raises(LehrError, match="does not answer, and does nothing"):
        daemon.start(tmp_path / "home", ServerOptions(), messages.append)
    assert len(messages) == 3
    assert next(used_s, None) is None
