"""Runs that cannot resume on another node: warned of, or rejected, when they are submitted."""

from __future__ import annotations

import copy

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, api_client, begin, end

WARNING = (
    "Its checkpoints stay on the node that writes them, because the nodes (n1, n2) do not share the "
    "folder of runs: if that node is lost, it cannot resume. Set checkpoints.upload, or put "
    "LEHR_RUNS on storage that all nodes share."
)


@pytest.fixture
def api(tmp_path):
    with api_client(tmp_path / "home") as pair:
        pair[0].dispatcher.separate = ["n1", "n2"]
        yield pair


def submit(client, **fields):
    return client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **fields}})


def test_run_without_shared_storage_is_accepted_with_a_warning(store, client):
    run = submit(client).json()
    assert run["warnings"] == [WARNING]
    assert client.get(f"/api/v1/runs/{run['id']}").json()["warnings"] == [WARNING]
    begin(store, run["id"])
    end(store, run["id"], RunState.FAILED)
    assert client.get(f"/api/v1/runs/{run['id']}").json()["warnings"] == []


def test_run_on_several_nodes_without_shared_storage_is_rejected(api, tmp_path):
    api_, client = api
    gang = {"resources": {"gpus": 4, "nodes": 2}}
    answer = submit(client, **gang)
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "resources.nodes"
    assert problem["message"] == (
        "resources.nodes: 2 nodes requested, but the nodes (n1, n2) do not share the folder of "
        "runs. Only the first would have the run's checkpoints, so it could never resume."
    )
    assert problem["hint"] == (
        "Set checkpoints.upload, or put LEHR_RUNS on storage that all nodes share."
    )
    sweep = copy.deepcopy(SWEEP_SPEC)
    sweep["run"].update(gang)
    answer = client.post("/api/v1/sweeps", json={"spec": sweep})
    assert [one["path"] for one in answer.json()["problems"]] == ["run.resources.nodes"]
    assert api_.store.runs.page(archived=None).total == 0

    copies = {"checkpoints": {"upload": f"file://{tmp_path}/copies"}}
    assert submit(client, **gang, **copies).json()["warnings"] == []
    api_.dispatcher.separate = []
    assert submit(client, **gang).json()["warnings"] == []
