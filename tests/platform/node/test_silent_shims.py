"""A shim that does not answer: the agent ends it, and its GPU is free again."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from lehr.base import filesystems, procfs
from lehr.node import agent as agents
from lehr.node.agent import Agent, NetworkFolder
from lehr.node.attempt_dir import SECRETS_FILE, AttemptDir
from lehr.node.gpu_lock import is_free
from lehr_testing.waiting import until

TRAINER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + "/ready", "w").close()
time.sleep(600)
"""


@pytest.fixture
def training(tmp_path, monkeypatch):
    """An agent whose attempt ``r1-1`` trains on GPU 0, under a real shim."""
    monkeypatch.setattr(agents, "SHIM_ANSWERS_S", 0.0)
    monkeypatch.setattr(agents, "FINALIZE_AGAIN_S", 0.0)
    agent = Agent("n1", 0, str(tmp_path / "node"))
    agent.session = "s"
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    run_dir = tmp_path / "runs" / "r1"
    gang = {"per_node": 1, "nodes": 1, "node_rank": 0, "master_address": "", "master_port": 1}
    launch = {
        "attempt_id": "r1-1",
        "run_id": "r1",
        "token": "t",
        "server_url": "http://127.0.0.1:1",
        "run_dir": str(run_dir),
        "attempt_dir": str(run_dir / "attempt-1"),
        "trainer": str(script),
        "gang": gang,
        "gpus": [0],
        "env": {},
        "files": {},
    }
    assert agent.start("s", launch) == "started"
    entry = AttemptDir(str(agent.attempts / "r1-1"))
    until((run_dir / "attempt-1" / "ready").exists, within_s=60, what="the training")
    yield agent, entry, run_dir / "attempt-1"
    entry.signal_shim(signal.SIGKILL)


def stop_shim(entry: AttemptDir) -> None:
    shim = procfs.read_json(entry.file("shim.json"))
    entry.signal_shim(signal.SIGSTOP)
    stat = Path(f"/proc/{shim['pid']}/stat")
    until(lambda: ") T " in stat.read_text(), within_s=60, what="the shim to stop")


def exit_of(agent: Agent, entry: AttemptDir) -> dict[str, object]:
    """The exit in the agent's list, which the server reads again and again."""
    until(lambda: agent.list()["r1-1"]["exit"], within_s=60, what="the exit")
    return agent.list()["r1-1"]["exit"]


def test_stopped_shim_is_ended_after_the_order_to_kill_and_its_gpu_is_free(training):
    agent, entry, _ = training
    nonce = (entry.launch() or {})["nonce"]
    stop_shim(entry)
    assert agent.stop("r1-1", "term", "cancelled")
    assert agent.list()["r1-1"]["exit"] is None, "it has time to save"
    assert agent.stop("r1-1", "kill", "cancelled")
    report = exit_of(agent, entry)
    assert report["reason"] == "shim_lost"
    assert "its launcher did not answer" in str(report["log_tail"])
    assert procfs.marked(procfs.MARK, nonce) == []
    assert is_free(agent.lock(0))


def test_shim_that_sleeps_is_named_and_one_that_is_awake_is_not(training):
    agent, entry, _ = training
    alive = Path(entry.file("alive"))
    registered = Path(entry.file("shim.json")).stat().st_mtime
    until(lambda: alive.stat().st_mtime > registered, within_s=60, what="the shim to wake up")
    assert agent.report()["notes"] == []
    stop_shim(entry)
    before = alive.stat().st_mtime - agents.SHIM_SLEEPS_S - 1
    os.utime(entry.file("shim.json"), (before - 1, before - 1))
    os.utime(alive, (before, before))
    [note] = agent.report()["notes"]
    assert "attempt r1-1 does not answer" in note
    assert "lehr cancel r1" in note


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
