"""An attempt's secrets on its node: apart from the launch spec, and gone once they are taken."""

from __future__ import annotations

import json
import os
import stat

import pytest

from lehr.node import attempt_dir
from lehr.node.agent import Agent
from lehr.node.attempt_dir import AttemptDir
from lehr.node.shim import Shim


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The folder of an attempt that an agent has started, without its shim's process."""
    agent = Agent("n1", 0, str(tmp_path / "node"))
    monkeypatch.setattr(agent, "_spawn", lambda entry: None)
    agent.session = "s"
    launch = {
        "attempt_id": "r1-1",
        "run_id": "r1",
        "run_dir": str(tmp_path / "runs/r1"),
        "attempt_dir": str(tmp_path / "runs/r1/attempt-1"),
        "gang": {
            "per_node": 1,
            "nodes": 1,
            "node_rank": 0,
            "master_address": "127.0.0.1",
            "master_port": 1,
        },
        "gpus": [],
        "env": {"PLAIN": "seen"},
        "secrets": {"HIDDEN": "the-value"},
        "files": {},
    }
    assert agent.start("s", launch) == "started"
    assert launch["secrets"] == {"HIDDEN": "the-value"}, "a repeated start sends it again"
    return tmp_path / "node/attempts/r1-1"


def test_the_agent_writes_them_into_a_file_of_their_own(started):
    assert "the-value" not in (started / "launch.json").read_text()
    file = started / attempt_dir.SECRETS_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"HIDDEN": "the-value"}


def test_the_shim_takes_them_before_the_trainer_starts(started):
    launch = json.loads((started / "launch.json").read_text())
    shim = Shim(AttemptDir(str(started)), launch)
    assert shim.prepare() is None
    assert shim.environment == {"PLAIN": "seen", "HIDDEN": "the-value"}
    assert not (started / attempt_dir.SECRETS_FILE).exists()
    assert all("the-value" not in path.read_text() for path in started.iterdir())
    assert "HIDDEN" not in os.environ


def test_an_attempt_without_secrets_has_no_file(tmp_path):
    assert attempt_dir.take_secrets(str(tmp_path)) == {}
