"""A cluster whose nodes have no GPUs: its message, and attempts that ran on such a node before."""

from __future__ import annotations

import pytest

from lehr.app.presenters.cluster import cluster_view
from lehr.cluster.membership import Cluster
from lehr.control.reconcile import MarkLost, OpenAttempt, Timeouts, judge
from lehr.store import Store

HELLO = {"attempts": {}, "gpus": [], "cpus": 2}


def node(name: str, gpus: int) -> dict:
    return {"name": name, "ray_id": f"ray-{name}", "address": "a", "gpus": gpus, "alive": True}


def members(*nodes: dict) -> dict:
    return {"news": "members", "nodes": list(nodes)}


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "home") as opened:
        yield opened


def state(cluster: Cluster, store: Store) -> tuple[str, str | None]:
    view = cluster_view(cluster, store, without_gpus="the cure")
    return view.state, view.message


def test_own_node_without_gpus_is_up_when_its_agent_answers(store):
    cluster = Cluster({"n1": []})
    cluster.set_state("up", None)
    assert state(cluster, store)[0] == "starting"
    cluster.on_news(members(node("n1", 0)))
    assert state(cluster, store) == ("starting", "Ray is up; its nodes' agents are starting")
    cluster.on_news({"news": "node", "name": "n1", "hello": HELLO})
    assert state(cluster, store) == ("up", "the cure")


def test_attempt_on_a_node_that_lost_its_gpus_is_lost_after_its_lease():
    cluster = Cluster({})
    cluster.set_state("up", None)
    cluster.on_news(members(node("n1", 0)))
    lease = Timeouts().lease_s
    for silent, expected in ((lease - 1, []), (lease + 1, [MarkLost])):
        attempt = OpenAttempt(
            "r-1", ("n1",), current=True, dispatched=True, contacted=True, since_contact_s=silent
        )
        seen = {name: member.seen() for name, member in cluster.members().items()}
        actions = judge(attempt, seen, Timeouts(), membership_known=True)
        assert [type(action) for action in actions] == expected
