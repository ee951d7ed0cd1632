"""Stopping the trainings of a home: saved, killed, and uncopied checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.base import home
from lehr.faces.join.drain import agents, drain_agents
from lehr.node.agent import Agent
from lehr.node.stop import count_trainings, stop_all
from lehr_testing.waiting import until

SHIM = """
import json, os, signal, sys
from lehr.base import procfs
from lehr.node.attempt_dir import AttemptDir

entry, stubborn = AttemptDir(sys.argv[1]), sys.argv[2] == "stubborn"
lock = entry.hold()

def end(number, frame):
    asked = entry.stop_level()
    report = {"signal": number, "asked": asked and asked[0], "by": entry.stopped_by()}
    report |= json.loads(sys.argv[3])
    procfs.write_json(entry.file("exit.json"), report)
    copying = {"ended": True, "waiting": 2, "error": "unreachable"}
    procfs.write_json(entry.file("copying.json"), copying)

signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else end)
signal.signal(signal.SIGUSR1, end)
pid = os.getpid()
me = {"pid": pid, "start_time": procfs.start_time(pid), "boot_id": procfs.boot_id()}
procfs.write_json(entry.file("shim.json"), me)
while True:
    signal.pause()
"""


SAVED = {"outcome": "stopped", "cause": "signal"}


@pytest.fixture
def shim(tmp_path):
    """Starts a process that lives in an attempt's folder as a shim does."""
    children = []

    def start(
        name: str,
        kind: str = "willing",
        *,
        upload: str | None = None,
        finished: dict[str, str | None] | None = SAVED,
        reason: str = "terminated",
    ):
        folder = home.node_dir(tmp_path) / "n1" / "attempts" / name
        folder.mkdir(parents=True)
        (folder / "launch.json").write_text("{}" if upload is None else f'{{"upload": "{upload}"}}')
        record = json.dumps({"finished": finished, "reason": reason})
        child = subprocess.Popen([sys.executable, "-c", SHIM, str(folder), kind, record])
        children.append(child)
        until((folder / "shim.json").exists, within_s=30, what="the shim")
        return folder, child

    yield start
    for child in children:
        child.kill()
        child.wait()


def exit_of(folder: Path) -> str:
    return (folder / "exit.json").read_text()


def test_training_that_saves_in_time_ends_with_its_shim_and_is_not_killed(tmp_path, shim):
    folder, child = shim("a-1")
    assert count_trainings(tmp_path) == 1
    report = stop_all(tmp_path, command="lehr down", timeout_s=30)
    assert (report.ends, report.uncopied) == ({"a-1": "saved"}, {})
    assert report.counts == {"saved": 1, "unsaved": 0, "over": 0, "killed": 0}
    assert report.runs == ("a",)
    assert '"asked": null' in exit_of(folder)
    assert child.wait(30) == -9
    assert count_trainings(tmp_path) == 0


@pytest.mark.parametrize(
    ("finished", "reason", "end"),
    [
        ({"outcome": "completed"}, "", "over"),
        ({"outcome": "failed", "cause": "nan_loss"}, "terminated", "over"),
        ({"outcome": "stopped", "cause": "cancel"}, "terminated", "over"),
        ({"outcome": "stopped", "cause": "pause"}, "terminated", "over"),
        ({"outcome": "stopped", "cause": None}, "terminated", "unsaved"),
        ({"outcome": "stopped", "cause": None}, "stopped", "over"),
        (None, "terminated", "unsaved"),
    ],
)
def test_training_that_did_not_save_to_resume_is_told_apart(tmp_path, shim, finished, reason, end):
    shim("a-1", finished=finished, reason=reason)
    shim("b-2")
    report = stop_all(tmp_path, command="lehr down", timeout_s=30)
    assert report.ends == {"a-1": end, "b-2": "saved"}


def test_training_learns_which_command_stops_it(tmp_path, shim):
    folder, _ = shim("a-1")
    stop_all(tmp_path, command="lehr node leave", timeout_s=30)
    assert '"by": "lehr node leave"' in exit_of(folder)


def test_training_that_does_not_stop_in_time_is_killed(tmp_path, shim):
    late, _ = shim("a-1", "stubborn")
    report = stop_all(tmp_path, command="lehr down", timeout_s=0)
    assert report.ends == {"a-1": "killed"}
    assert '"asked": "kill"' in exit_of(late)


def test_uncopied_checkpoints_are_reported_by_storage(tmp_path, shim):
    shim("a-1", upload="s3://one")
    shim("b-1", upload="s3://one")
    shim("c-1")
    report = stop_all(tmp_path, command="lehr down", timeout_s=30)
    assert list(report.ends.values()) == ["saved"] * 3
    assert report.uncopied == {"s3://one": (4, "unreachable")}


def test_node_that_did_not_join_by_itself_is_drained_through_its_agent(tmp_path, shim):
    """Nodes of KubeRay have no token of the server; their agents report to it by Ray."""
    shim("a-1")
    agent = Agent("n1", 0, str(home.node_dir(tmp_path) / "n1"))
    assert agent.report()["draining"] is False
    [folder] = agents(tmp_path)
    # No shipper runs here, so nothing would be delivered however long one waits.
    drained = drain_agents(tmp_path, [folder], wait=False, timeout_s=30, notice_s=0, deliver_s=0)
    assert drained.trainings.ends == {"a-1": "saved"}
    assert agent.report()["draining"] is True
    assert agent.hello("s", "http://127.0.0.1:1")["draining"] is True
    # The container starts again: Ray makes another agent, and the node gets work.
    assert Agent("n1", 0, str(folder)).report()["draining"] is False
