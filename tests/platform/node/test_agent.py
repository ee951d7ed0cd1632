"""The agent of a node, without Ray."""

from __future__ import annotations

import errno

import pytest

from lehr.base import filesystems, procfs
from lehr.node.agent import Agent, NetworkFolder
from lehr.node.attempt_dir import SECRETS_FILE


def test_agent_whose_folder_is_on_a_network_file_system_begins_no_session(tmp_path, monkeypatch):
    """The lock of a living shim may be lost there, and its training would be killed."""
    agent = Agent("n1", 0, str(tmp_path / "node"))
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", table)
    with pytest.raises(NetworkFolder, match=r"nfs4, a network file system.*LEHR_NODE"):
        agent.hello("session", "http://127.0.0.1:1")
    assert agent.session == ""


@pytest.mark.parametrize("full_at", ["launch.json", SECRETS_FILE])
def test_start_on_a_full_disk_is_an_error_and_leaves_no_secrets(tmp_path, monkeypatch, full_at):
    agent = Agent("n1", 0, str(tmp_path / "node"))
    write_json = procfs.write_json

    def write(path, *args, **options):
        write_json(path, *args, **options)
        if path.endswith(full_at):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(procfs, "write_json", write)
    run_dir = str(tmp_path / "runs" / "a")
    launch = {"attempt_id": "a-1", "run_dir": run_dir, "gpus": [], "env": {}, "files": {}}
    with pytest.raises(OSError, match="No space left"):
        agent.start("", launch | {"secrets": {"TOKEN": "hidden"}})
    assert list(agent.attempts.iterdir()) == []
    assert agent.list() == {}
