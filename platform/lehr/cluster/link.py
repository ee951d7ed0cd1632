"""Measure the network between nodes: ``python -P -m lehr.cluster.link ADDRESS``, as a Ray driver.

Each node sends to the next one, over TCP and the interface that gloo uses in a training. A line of
JSON for each pair: ``{"ends", "gbits", "error"}``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from lehr.cluster import ray_ports
from lehr.cluster.membership import current_nodes

SECONDS = 2.0
STREAMS = 8  # One alone often does not fill a fast link.
_BLOCK = 4 << 20
_PATIENCE_S = 20.0


class Receiver:
    """An actor on one node."""

    def __init__(self) -> None:
        named = ray_ports.addresses().get(os.environ.get("GLOO_SOCKET_IFNAME", ""))
        port = next(port for port in ray_ports.RENDEZVOUS[::97] if ray_ports.is_free(port))
        self._listener = socket.create_server((named or ray.util.get_node_ip_address(), port))
        self._listener.settimeout(_PATIENCE_S)

    def address(self) -> Any:
        return self._listener.getsockname()

    def receive(self) -> float:
        """Return the Gbit/s that arrived over all streams."""
        streams = [self._listener.accept()[0] for _ in range(STREAMS)]
        began = time.monotonic()

        def drop(stream: socket.socket) -> int:
            buffer = bytearray(_BLOCK)
            stream.settimeout(_PATIENCE_S)
            with stream:
                return sum(iter(lambda: stream.recv_into(buffer), 0))

        with ThreadPoolExecutor(STREAMS) as pool:
            received = sum(pool.map(drop, streams))
        return 8e-9 * received / (time.monotonic() - began)


def send(address: Any) -> None:
    """Send zeros to a receiver over all streams."""
    streams = [socket.create_connection(address, timeout=_PATIENCE_S) for _ in range(STREAMS)]
    end = time.monotonic() + SECONDS

    def fill(stream: socket.socket) -> None:
        with stream:
            while time.monotonic() < end:
                stream.sendall(bytes(_BLOCK))

    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(fill, streams))


def measure(sender: str, receiver: str) -> float:
    """Return the Gbit/s from one node to another, by their Ray ids."""
    here, there = (
        {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        for node in (sender, receiver)
    )
    actor: Any = ray.remote(Receiver).options(**there).remote()
    try:
        address = ray.get(actor.address.remote(), timeout=2 * _PATIENCE_S)
        sending = ray.remote(send).options(max_retries=0, **here).remote(address)
        rate, _ = ray.get([actor.receive.remote(), sending], timeout=3 * _PATIENCE_S)
    finally:
        ray.kill(actor)
    return float(rate)


def main() -> None:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
    nodes = [node for node in current_nodes(ray.nodes()) if node.alive and node.gpus]
    for sender, receiver in zip(nodes, nodes[1:] + nodes[:1], strict=True):
        if sender is receiver:
            return
        gbits, problem = 0.0, ""
        try:
            gbits = measure(sender.ray_id, receiver.ray_id)
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; each is a finding
            problem = (str(error).splitlines() or [repr(error)])[-1]
        ends = f"{sender.name} to {receiver.name}"
        print(json.dumps({"ends": ends, "gbits": gbits, "error": problem}), flush=True)


if __name__ == "__main__":
    main()
