"""A node with other folders than the server's: paths of a launch spec are its own."""

from __future__ import annotations

import json

import pytest

from lehr.node import runs_folder

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
