"""Nodes that answer and have a problem: they keep their attempts and get no new ones."""

from __future__ import annotations

from lehr.cluster.bridge import clock_offset_s
from lehr.cluster.membership import Cluster

PROBLEM = "its driver lists no GPU"


def with_hello(**hello):
    cluster = Cluster({})
    node = {"name": "n1", "ray_id": "r", "address": "10.0.0.1", "gpus": 1, "alive": True}
    cluster.on_news({"news": "members", "nodes": [node]})
    gpu = {"index": 0, "name": "NVIDIA H100"}
    listed = {"attempts": {"a-1": {"state": "live", "gpus": [0], "exit": None}}, "gpus": [gpu]}
    cluster.on_news({"news": "node", "name": "n1", "hello": listed | hello})
    return cluster.members()["n1"]


def test_node_with_a_problem_keeps_its_attempts_and_gets_no_new_ones():
    member = with_hello(problems=[PROBLEM])
    assert member.seen().answered
    assert set(member.seen().attempts) == {"a-1"}
    node = member.as_node()
    assert (node.usable, node.problem) == (False, PROBLEM)


def test_node_that_leaves_keeps_its_attempts_and_gets_no_new_ones():
    cluster = Cluster({})
    node = {"name": "n1", "ray_id": "r", "address": "10.0.0.1", "gpus": 1, "alive": True}
    cluster.on_news({"news": "members", "nodes": [node]})
    listed = {"attempts": {"a-1": {"state": "live", "gpus": [0], "exit": None}}}
    gpus = {"gpus": [{"index": 0, "name": "NVIDIA H100"}]}
    cluster.on_news({"news": "node", "name": "n1", "hello": listed | gpus})
    assert cluster.members()["n1"].as_node().usable
    cluster.on_news({"news": "node", "name": "n1", **listed, "draining": True})
    member = cluster.members()["n1"]
    assert set(member.seen().attempts) == {"a-1"}
    assert member.as_node().problem == "it is leaving the cluster"
    assert not member.as_node().usable
    # A new server asks the agent again.
    cluster.on_news({"news": "node", "name": "n1", "hello": listed | gpus | {"draining": True}})
    assert not cluster.members()["n1"].as_node().usable
    cluster.on_news({"news": "node", "name": "n1", **listed, "draining": False})
    assert cluster.members()["n1"].as_node().usable


def test_node_that_cannot_store_runs_gets_none_until_it_can():
    cluster = Cluster({})
    node = {"name": "n1", "ray_id": "r", "address": "10.0.0.1", "gpus": 1, "alive": True}
    cluster.on_news({"news": "members", "nodes": [node]})
    full, report = "no space for runs: /runs has 0 MB free", {"news": "node", "name": "n1"}
    hello = {"attempts": {}, "gpus": [{"index": 0, "name": "NVIDIA H100"}], "storage": full}
    cluster.on_news(report | {"hello": hello})
    assert cluster.members()["n1"].as_node().problem == full
    assert cluster.on_news(report | {"attempts": {}, "storage": None}), "the queue looks again"
    assert cluster.members()["n1"].as_node().usable


def test_clock_offset_is_only_what_is_certain():
    def offset(there):
        return clock_offset_s({"facts": {"time": there}}, 100.0, 104.0)

    assert offset(102.0) == 0.0
    assert offset(110.0) == 6.0
    assert offset(95.0) == -5.0
