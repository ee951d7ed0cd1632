"""A second machine of a test's Ray cluster: a raylet of its own, in a network of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

from lehr.base import home as homes
from lehr.base import killpoints, procfs
from lehr.cluster import ray_head
from lehr_testing.faults.machine import Machine
from lehr_testing.faults.network import Namespace
from lehr_testing.server import Server
from lehr_testing.waiting import until

MARK = "LEHR_TEST_SECOND_NODE"
"""Environment variable of all that one second node runs; other tests have theirs beside it."""


class SecondNode:
    """A second raylet, as another machine's `ray start --address` would be.

    In ``network``, it reaches this machine only through that namespace's cable. On ``machine``,
    it can lose its power. ``environment``: more for all that it runs.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        *,
        gpus: int = 2,
        network: Namespace | None = None,
        machine: Machine | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.server = server
        self.name = name
        self.mark = secrets.token_hex(8)
        self.gpus = gpus
        self.network = network
        self.machine = machine
        self.environment = environment or {}
        self.folder = homes.ray_dir(server.home) / name
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        head = ray_head.recorded(self.server.home)
        assert head is not None
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LEHR_"))}
        points = self.server.environment.get(killpoints.VARIABLE)
        place = self.network or self.machine
        inside = place.command if place else []
        address = [f"--node-ip-address={self.network.there}"] if self.network else []
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "ray.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *inside,
                    *(sys.executable, "-P", "-m", "lehr.cluster.ray_process", "start", "--block"),
                    *(f"--address={head.address}", "--num-cpus=0", f"--num-gpus={self.gpus}"),
                    *(f"--labels=lehr.node={self.name}", f"--temp-dir={self.folder}"),
                    *("--object-store-memory=80000000", "--dashboard-agent-listen-port=0"),
                    *("--disable-usage-stats", "--include-log-monitor=false", *address),
                ],
                env={
                    **clean,
                    **ray_head.driver_environment(self.server.home),
                    "LEHR_NODE": str(homes.node_dir(self.server.home)),
                    MARK: self.mark,
                    **({killpoints.VARIABLE: points} if points else {}),
                    **self.environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def revive(self) -> None:
        """Start it again if it has ended, as a service manager does."""
        if self.process is not None and self.process.poll() is not None:
            self.kill()
            self.start()

    def kill(self) -> None:
        """Kill the raylet, its agent and all its other processes at once, as a power cut does.

        What its shims started is not Ray's, and goes on; a ``machine`` takes that along, too.
        """
        if self.process is None:
            return
        while left := procfs.marked(MARK, self.mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
        self.process.wait()


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
