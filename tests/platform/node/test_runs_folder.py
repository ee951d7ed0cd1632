"""The identity of the folder of runs."""

from __future__ import annotations

import json
import os

import pytest

from lehr.node import runs_folder
from lehr.node.agent import Agent
from lehr.node.runs_folder import UNMARKED, folder_id, known_id
from lehr_trainer.contract.layout import RUNS_MARKER


def test_folder_keeps_its_identity_by_whatever_path_it_is_seen(tmp_path):
    first = folder_id(tmp_path / "a" / "runs")
    assert first is not None
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert folder_id(tmp_path / "link" / "runs") == first
    assert folder_id(tmp_path / "b" / "runs") not in {None, first}
    assert [path.name for path in (tmp_path / "a" / "runs").iterdir()] == [RUNS_MARKER]
    agent = Agent("n1", 1, str(tmp_path / "node"))
    assert agent.runs_folder(str(tmp_path / "a" / "runs")) == first


def test_folder_that_cannot_be_used_has_no_identity(tmp_path):
    (tmp_path / "file").write_text("")
    assert folder_id(tmp_path / "file" / "runs") is None
    assert known_id(tmp_path / "file" / "runs") is None
    for name, made in {
        "empty": lambda path: path.write_text(""),
        "other": lambda path: path.write_text("hello\n"),
        "link": lambda path: path.symlink_to("/etc/hostname"),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        made(folder / RUNS_MARKER)
        assert folder_id(folder) is None
        assert known_id(folder) is None


def test_folder_that_hangs_has_no_identity(tmp_path):
    os.mkfifo(tmp_path / RUNS_MARKER)  # Opening it for reading waits for a writer.
    assert folder_id(tmp_path, patience_s=0.05) is None
    assert known_id(tmp_path, patience_s=0.05) is None
    os.close(os.open(tmp_path / RUNS_MARKER, os.O_RDWR))


def test_look_at_a_folder_changes_nothing(tmp_path):
    folder = tmp_path / "a" / "runs"
    assert known_id(folder) == UNMARKED
    assert [*tmp_path.iterdir()] == []
    folder.mkdir(parents=True)
    assert known_id(folder) == UNMARKED
    assert [*folder.iterdir()] == []
    assert known_id(folder) == UNMARKED != folder_id(folder) == known_id(folder)


LAUNCH = {
    "run_dir": "/srv/runs/k3f9x2ab",
    "attempt_dir": "/srv/runs/k3f9x2ab/attempt-2",
    "env": {"LEHR_DATA": "/srv/data", "MODE": "/srv/runs/x"},
    "files": {
        "config.yaml": "model: /srv/runs/tiny",
        "attempt-2/launch.json": json.dumps({"attempt": 2, "resume_from": "/srv/runs/aa/c/step-1"}),
    },
    "fetch": [{"path": "attempt-1/checkpoints/step-1", "url": "s3://b/c"}],
}


@pytest.fixture
def on_node(monkeypatch):
    def set_to(**folders):
        for name in (runs_folder.RUNS, runs_folder.DATA):
            monkeypatch.delenv(name, raising=False)
            if folders.get(name):
                monkeypatch.setenv(name, folders[name])

    return set_to


def test_node_without_folders_of_its_own_uses_the_servers(on_node):
    on_node()
    assert runs_folder.localize(LAUNCH) == LAUNCH
    assert str(runs_folder.runs_dir("/srv/runs")) == "/srv/runs"


def test_paths_under_the_folder_of_runs_move_and_nothing_else_does(on_node):
    on_node(LEHR_RUNS="/mnt/runs", LEHR_DATA="/mnt/data")
    found = runs_folder.localize(LAUNCH)
    assert found["run_dir"] == "/mnt/runs/k3f9x2ab"
    assert found["attempt_dir"] == "/mnt/runs/k3f9x2ab/attempt-2"
    assert found["env"] == {"LEHR_DATA": "/mnt/data", "MODE": "/srv/runs/x"}
    assert found["files"]["config.yaml"] == LAUNCH["files"]["config.yaml"]
    note = json.loads(found["files"]["attempt-2/launch.json"])
    assert note == {"attempt": 2, "resume_from": "/mnt/runs/aa/c/step-1"}
    assert found["fetch"] == LAUNCH["fetch"]


def test_folder_whose_name_only_begins_alike_does_not_move(on_node):
    on_node(LEHR_RUNS="/mnt/runs")
    note = json.dumps({"resume_from": "/srv/runs-of-others/aa"})
    launch = LAUNCH | {"files": {"attempt-2/launch.json": note}}
    assert runs_folder.localize(launch)["files"] == {"attempt-2/launch.json": note}
