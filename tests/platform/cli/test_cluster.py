"""``lehr cluster``: nodes are listed, taken out of use, taken back in."""

from __future__ import annotations

import json

import pytest

from lehr.cli import cluster as commands
from lehr.cli import output
from lehr.errors import NotFound
from lehr.views import ClusterView, GpuView, NodeView


class StandIn:
    """A client of a cluster of two nodes."""

    def __init__(self) -> None:
        self.excluded: dict[str, str] = {"n2": "it failed 2 attempts in a row: a-1 (ecc_error)"}

    def cluster(self) -> ClusterView:
        nodes = [
            NodeView(
                name=name,
                address="10.0.0.1",
                alive=True,
                logical=True,
                gpus=[GpuView(index=0, name="logical GPU", run_id="abc" if name == "n1" else None)],
                excluded=self.excluded.get(name),
            )
            for name in ("n1", "n2")
        ]
        return ClusterView(state="up", nodes=nodes, gpus_total=2, gpus_busy=1)

    def exclude_node(self, node: str, reason: str) -> ClusterView:
        self.excluded[node] = reason
        return self.cluster()

    def readmit_node(self, node: str) -> ClusterView:
        if node not in {"n1", "n2"}:
            raise NotFound(f"The cluster has no node {node!r}.", hint="Did you mean n1?")
        self.excluded.pop(node, None)
        return self.cluster()


@pytest.fixture
def client(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(commands, "connect", lambda: made)
    monkeypatch.setenv("COLUMNS", "160")
    output.console.cache_clear()
    yield made
    output.console.cache_clear()


def test_ls_says_which_nodes_get_no_more_work_and_why(client, capsys):
    commands.ls()
    shown = capsys.readouterr().out
    assert "excluded: it failed 2 attempts in a row: a-1 (ecc_error)" in shown
    assert "in use" in shown


def test_a_node_is_taken_out_with_a_reason_and_back_in(client, capsys):
    commands.exclude("n1", "its fans")
    assert client.excluded["n1"] == "its fans"
    assert "n1 is excluded" in capsys.readouterr().out
    commands.readmit("n2", as_json=True)
    assert json.loads(capsys.readouterr().out)["nodes"][1]["excluded"] is None
    assert client.excluded == {"n1": "its fans"}


def test_an_unknown_node_is_an_error_that_names_the_nearest(client):
    with pytest.raises(NotFound, match="n7"):
        commands.readmit("n7")
