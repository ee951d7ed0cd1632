"""A server and a second node, on one machine or in two networks that are joined by a cable."""

from __future__ import annotations

from collections.abc import Iterator

from lehr_testing.faults.network import Namespace
from lehr_testing.faults.second_node import SecondNode
from lehr_testing.server import Server
from lehr_testing.waiting import until


def nodes_in_use(server: Server) -> int:
    return sum(node.alive for node in server.client().cluster().nodes)


def joined_node(server: Server, *, gpus: int) -> Iterator[SecondNode]:
    """Join a second node, n2, to a server that is up, and wait until it has left again."""
    node = SecondNode(server, "n2", gpus=gpus)
    node.start()
    try:
        until(lambda: nodes_in_use(server) == 2, within_s=120, what="two nodes that answer")
        yield node
    finally:
        node.kill()
        until(lambda: nodes_in_use(server) == 1, within_s=120, what="the second node to be gone")


def with_second_node(server: Server, network: Namespace, *, gpus: int) -> Iterator[SecondNode]:
    """Brings both up, and both down; the second node is named n2.

    As on a trusted network: workers reach the server by the cable, the test by loopback.
    """
    server.up_arguments = (
        *("--host", "0.0.0.0", "--insecure", "--allowed-host", "127.0.0.1"),
        *("--public-url", f"http://{network.here}:{server.port}"),
    )
    server.up()
    node = SecondNode(server, "n2", gpus=gpus, network=network)
    try:
        server.cluster_ready()
        node.start()
        until(lambda: nodes_in_use(server) == 2, within_s=180, what="two nodes that answer")
        yield node
    finally:
        node.kill()
        server.down()
