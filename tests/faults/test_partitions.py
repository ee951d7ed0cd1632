"""A node without network: for a short time, or until it counts as lost.

Two raylets on one machine, the second in a network namespace of its own: to pull its cable cuts
it off from Ray and from the server at once, and nobody is told.
"""

from __future__ import annotations

import os

import pytest

from lehr_testing.fakes import gone
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.network import Proxy, namespace
from lehr_testing.faults.second_node import nodes_in_use, with_second_node
from lehr_testing.server import alive
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

PARTITION_S = float(os.environ.get("LEHR_FAULTS_PARTITION_S") or 75)
pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600 + 4 * PARTITION_S)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(server, second node): one GPU each."""
    with namespace() as network:
        folder = tmp_path_factory.mktemp("partition")
        server = FaultServer(folder / "home", gpus=1, corpus=text_corpus(folder / "corpus"))
        for node in with_second_node(server, network, gpus=1):
            yield server, node


def on_the_second_node(server: FaultServer, name: str, *, steps: int):
    """Start a run on the second node; the GPU of the first stays free."""
    both = [
        server.submit(server.spec(f"{name}-{n}", steps=steps, step_s=0.2, CHECKPOINT_EVERY=5))
        for n in (1, 2)
    ]
    for run in both:
        until(lambda i=run.id: server.step(f"{i}-1") >= 6, within_s=90, what="both to train")
    here, there = sorted(both, key=lambda run: placed_on(server, run) == "n2")
    assert placed_on(server, there) == "n2"
    server.verb(here, "cancel")
    server.ends(here)
    return there


def placed_on(server: FaultServer, run) -> str:
    return server.client().run(run.id).detail.placement[0].node


def join_again(server: FaultServer, node) -> None:
    """Start the raylet again, as a service manager does."""
    node.kill()
    until(lambda: nodes_in_use(server) == 1, within_s=120, what="the old raylet to be missed")
    node.start()

    def answer() -> bool:
        node.revive()  # On a machine at its limit, Ray gives up its own start.
        return nodes_in_use(server) == 2

    until(answer, within_s=180, what="two nodes that answer", every_s=0.5)


def test_partition_beyond_the_lease_loses_the_node_and_fences_its_attempts(pair):
    server, node = pair
    run = on_the_second_node(server, "given-up", steps=2_000)
    trainer = server.trainer(f"{run.id}-1")
    node.network.cut()
    try:
        until(
            lambda: server.client().run(run.id).attempt == 2,
            within_s=180,
            what="the run to begin again elsewhere",
        )
        until(lambda: server.state(run) == "running", within_s=90, what="it to run there")
        assert placed_on(server, run) != "n2"
        assert alive(trainer)  # It could not receive the order to stop.
    finally:
        node.network.heal()
    gone(trainer, within_s=90)
    join_again(server, node)
    moves = [e.message for e in run.events() if e.kind == "transition"]
    assert any("node n2 was lost" in (words or "") for words in moves)
    server.verb(run, "cancel")
    assert server.ends(run) == ["cancelled"]
    server.verdict()


def test_unreachable_server_loses_nothing_after_any_outage(tmp_path):
    """Missing heartbeats alone never end a run. The proxy closes all connections.

    ``LEHR_FAULTS_PARTITION_S`` makes it longer than the 75 s that show this.
    """
    steps = 375
    server = FaultServer(tmp_path / "home", gpus=1, corpus=text_corpus(tmp_path / "corpus"))
    proxy = Proxy(server.port)
    server.up_arguments = ("--public-url", proxy.url)
    server.up()
    try:
        server.cluster_ready()
        run = server.submit(server.spec("unheard", steps=steps + 150, step_s=PARTITION_S / steps))
        until(lambda: server.step(f"{run.id}-1") >= 5, within_s=90, what="the run to train")
        proxy.cut()
        recorded = server.client().run(run.id).step or 0
        until(
            lambda: server.client().run(run.id).view.liveness == "unreachable",
            within_s=60,
            what="the run to be shown as unreachable",
        )
        until(
            lambda: server.step(f"{run.id}-1") > recorded + steps,
            within_s=240 + 2 * PARTITION_S,
            what="it to train on for longer than the lease",
        )
        assert server.state(run) == "running"
        assert (server.client().run(run.id).step or 0) < recorded + 100
        proxy.heal()
        assert server.ends(run, within_s=180 + PARTITION_S) == ["completed"]
        assert server.client().run(run.id).attempt == 1
        there = server.client().run(run.id).history("train/loss")["step"]
        assert list(there) == list(range(1, steps + 151))
        server.verdict()
    finally:
        proxy.heal()
        server.down()
        proxy.close()
