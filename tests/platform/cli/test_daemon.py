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


FAILS = """
import json, sys, traceback
from lehr.errors import HomeUnusable
def open_it():
    raise HomeUnusable("lehr.db was written by a newer version.", hint="Install that version again.")
try:
    try:
        {}["home"]
    except KeyError:
        open_it()
except HomeUnusable:
    print(json.dumps({"event": traceback.format_exc()}))
print(json.dumps({"event": "Application startup failed. Exiting."}))
sys.exit(3)
"""


def test_server_that_fails_is_explained_by_its_error_and_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "server_command", lambda *_: [sys.executable, "-c", FAILS])
    with pytest.raises(LehrError, match="it ended with exit code 3") as raised:
        daemon.start(tmp_path / "home", ServerOptions())
    assert raised.value.hint.splitlines()[1:] == [
        (
            "    lehr.errors.HomeUnusable: lehr.db was written by a newer version. "
            "Install that version again."
        ),
        "    Application startup failed. Exiting.",
    ]
