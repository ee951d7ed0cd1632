"""``lehr doctor``: what is wrong with a node, and how nodes differ."""

from __future__ import annotations

import pytest

from lehr.control.nodes import LEFT
from lehr.faces.cli.cluster_checks import check_cluster
from lehr.schemas.cluster import ClusterView, GpuView, NodeView

VERSIONS = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "nccl": "2.28", "lehr": "1.0"}
GPU = GpuView(index=0, name="NVIDIA H100")


def node(name, **changes):
    values = {
        "name": name,
        "address": "10.0.0.1",
        "alive": True,
        "logical": False,
        "gpus": [GPU],
        "versions": VERSIONS,
        "clock_offset_s": 0.0,
        "free_bytes": {"LEHR_RUNS": 10**12},
        "runs_folder": "a" * 32,
    }
    return NodeView(**(values | changes))


def findings(*nodes, **changes):
    values = {"state": "up", "nodes": list(nodes), "gpus_total": len(nodes), "gpus_busy": 0}
    view = ClusterView(**(values | changes))
    return [check for check in check_cluster(view) if check.status != "ok"]


def test_sound_cluster_has_no_finding():
    assert findings(node("n1"), node("n2")) == []


@pytest.mark.parametrize(
    ("changes", "status", "name", "found"),
    [
        ({"alive": False}, "note", "n3", "does not answer"),
        (
            {"alive": False, "away": "has not come back"},
            "note",
            "n3",
            "has not come back (10.0.0.1)",
        ),
        ({"problems": ["its driver lists no GPU"]}, "bad", "n3", "cannot be used"),
        ({"notes": ["a shim sleeps: lehr cancel r1"]}, "note", "n3", "a shim sleeps"),
        ({"excluded": "two failures"}, "note", "n3", "excluded: two failures"),
        ({"alive": False, "excluded": LEFT, "left": True}, "note", "n3", "has left the cluster"),
        ({"clock_offset_s": -7.0}, "note", "n3", "7 s behind"),
        ({"free_bytes": {"LEHR_DATA": 10**8}}, "bad", "n3", "free for data"),
        ({"versions": VERSIONS | {"ray": "2.59.0"}}, "bad", "Ray", "n3 has 2.59.0"),
        ({"versions": VERSIONS | {"nccl": "2.27"}}, "bad", "NCCL", "n3 has 2.27"),
        ({"versions": VERSIONS | {"lehr": "0.9"}}, "note", "lehr", "n3 has 0.9"),
        ({"runs_folder": "b" * 32}, "note", "folder of runs", "do not share"),
    ],
)
def test_each_wrong_thing_is_found(changes, status, name, found):
    [check] = findings(node("n1"), node("n2"), node("n3", **changes))
    assert (check.status, check.name) == (status, name)
    assert found in check.found
    assert check.fix


def test_nodes_that_are_not_there_are_not_counted():
    nodes = [node("n1"), node("n2", alive=False), node("n3", alive=False, left=True)]
    view = ClusterView(state="up", nodes=nodes, gpus_total=1, gpus_busy=0)
    assert check_cluster(view)[0].found == "up, 1 GPU on 1 node"
    # While Ray starts, no node answers yet.
    starting = check_cluster(view.model_copy(update={"state": "starting"}))
    assert "n2" not in [check.name for check in starting]


def test_cluster_without_ray_says_why():
    [check] = findings(state="down", message="Ray did not start")
    assert (check.status, check.fix) == ("note", "Ray did not start")


def test_node_of_an_earlier_release_reports_no_versions_and_is_no_difference():
    assert findings(node("n1"), node("n2", versions={}, runs_folder=None)) == []
