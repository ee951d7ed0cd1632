"""The agent of a node, without Ray."""

from __future__ import annotations

import pytest

from lehr import filesystems
from lehr.node.agent import Agent, NetworkFolder


def test_agent_whose_folder_is_on_a_network_file_system_begins_no_session(tmp_path, monkeypatch):
    """The lock of a living shim may be lost there, and its training would be killed."""
    agent = Agent("n1", 0, str(tmp_path / "node"))
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", table)
    with pytest.raises(NetworkFolder, match=r"nfs4, a network file system.*LEHR_NODE"):
        agent.hello("session", "http://127.0.0.1:1")
    assert agent.session == ""
