"""Nodes that the last server knew: a new one expects them, and says why they are not there."""

from __future__ import annotations

import json
import time

import pytest

from lehr.app.presenters.cluster import ClusterPresenter
from lehr.cluster.dispatcher import Dispatcher
from lehr.cluster.known_nodes import KEPT_S, NOT_BACK, WRITE_S, KnownNodes
from lehr.cluster.membership import Member
from lehr.control.nodes import LEFT
from lehr.specs import Resources, load_spec
from lehr.store import Store
from lehr_testing.api import RUN_SPEC

PUBLIC = "http://10.0.0.1:5347"


class Server:
    """A dispatcher of one's own node, n1, which other nodes join. It is never started."""

    def __init__(self, home, *, url=PUBLIC, ray_address=None):
        self.home = home
        self.elapsed = 0.0
        self.store = Store.open(home)
        options = {"ray_address": ray_address} if ray_address else {"gpus": 2, "node": "n1"}
        self.dispatcher = Dispatcher(
            self.store, home, server_url=url, clock=lambda: self.elapsed, **options
        )
        self.names: list[str] = []
        self.there("n1")

    def there(self, *names, gpus=2, folder=None):
        """Have Ray list these nodes and no others, and their agents answer."""
        members = [
            {"name": n, "ray_id": f"r-{n}", "address": f"a-{n}", "gpus": gpus, "alive": True}
            for n in names
        ]
        self.dispatcher._bridge_state("up", None)
        self.dispatcher._on_news({"news": "members", "nodes": members})
        for name in names:
            cards = [{"index": i, "name": "A100", "memory_bytes": 1} for i in range(gpus)]
            hello = {"attempts": {}, "gpus": cards, "cpus": 4, "runs_folder": folder or name}
            self.dispatcher._on_news({"news": "node", "name": name, "hello": hello})

    def view(self):
        shown = ClusterPresenter(
            self.store, self.dispatcher.cluster, self.dispatcher.queue_order, embedded=True
        )
        return {node.name: node for node in shown.cluster().nodes}

    def tick(self, seconds=WRITE_S):
        self.elapsed += seconds
        self.dispatcher.tick()

    def stop(self):
        self.dispatcher.stop()
        self.store.close()


@pytest.fixture
def home(tmp_path):
    (tmp_path / "token").write_text("first")
    return tmp_path


@pytest.fixture
def restarted(home):
    """Start a server, have n2 join, stop it, and start another; return a function for more."""
    opened: list[Server] = []

    def start(**options):
        if opened:
            opened.pop().stop()
        opened.append(Server(home, **options))
        return opened[-1]

    start().there("n1", "n2")
    yield start
    opened.pop().stop()


def test_node_that_has_not_come_back_is_listed_with_what_is_known_of_it(restarted):
    server = restarted()
    node = server.view()["n2"]
    assert (node.alive, node.away, node.no_runs) == (False, NOT_BACK, NOT_BACK)
    assert (node.address, len(node.gpus), node.cpus, node.runs_folder) == ("a-n2", 2, 4, "n2")
    assert node.last_seen_at == pytest.approx(time.time(), abs=60)
    # Another server without it knows it, too.
    server.tick()
    assert restarted().view()["n2"].away == NOT_BACK


def test_run_for_the_missing_node_is_accepted_and_its_reason_names_it(restarted):
    server = restarted()
    spec = {**RUN_SPEC, "resources": {"gpus": 4, "nodes": 2}}
    assert server.dispatcher.can_ever_place(Resources(gpus=4, nodes=2)) is None
    run = server.store.runs.create(load_spec(spec))
    server.tick()
    reason = server.store.runs.get(run.id).pending_reason
    assert reason == f"waits for 4 GPUs on 2 nodes (node n2 {NOT_BACK})"


def test_node_that_was_away_for_long_is_forgotten(restarted, home):
    server = restarted()
    server.stop()
    path = home / "nodes.json"
    kept = json.loads(path.read_text())
    for days, there in ((KEPT_S - 3600, True), (KEPT_S + 3600, False)):
        kept["nodes"]["n2"]["seen_at"] = time.time() - days
        path.write_text(json.dumps(kept))
        known = KnownNodes(home, ray_address=None, own=["n1"])
        assert bool(known.members()) is there
    server.store = Store.open(home)


@pytest.mark.parametrize("text", ["", "[]", '{"cluster": ""}', '{"cluster": "", "nodes": [1]}'])
def test_file_that_cannot_be_read_is_as_none(home, text):
    (home / "nodes.json").write_text(text)
    known = KnownNodes(home, ray_address=None, own=["n1"])
    assert known.members() == []


def test_node_that_has_left_is_not_expected(restarted):
    server = restarted()
    server.there("n1", "n2")
    server.dispatcher.exclude_node("n2", LEFT)
    server.there("n1")
    assert "n2" not in restarted().view()


def test_nodes_of_another_ray_cluster_are_not_expected(restarted):
    server = restarted(ray_address="10.0.0.9:6379")
    assert "n2" not in server.view()


def test_disk_that_takes_nothing_stops_no_tick(home, caplog):
    known = KnownNodes(home, ray_address=None, own=[])
    (home / "nodes.json").mkdir()
    n2 = Member("n2", gpus=({"index": 0},), last_seen_at=time.time())
    for number in range(3):
        known.note({"n2": n2, f"x{number}": Member(f"x{number}")}, set, now=True)
    assert caplog.text.count("not remembered") == 1
