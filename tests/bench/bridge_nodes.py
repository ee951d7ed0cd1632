"""Memory of the bridge to Ray while nodes come and go.

    python tests/bench/bridge_nodes.py [--nodes 12]

A real Ray cluster of two nodes on this machine, and the bridge's own code in a process of its own, which
starts an agent on each node. The second node is added, its agent answers, the node is killed; then the next
one. Prints after each the resident memory, the objects of Python and the threads of that process. A raylet's
start costs a few seconds of the processor.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr_testing.waiting import until

SETTLED_S = 8.0
"""Until the bridge has seen that a node is gone, and has given up its agent."""
AGENT_S = 120.0


class Hellos:
    """Prints the name of each node whose agent has answered."""

    def send(self, **news: Any) -> None:
        if "hello" in news:
            print("hello", news["name"], flush=True)


def measure(address: str) -> None:
    """Run the bridge, and answer each line of stdin with its memory, objects and threads."""
    import psutil
    import ray

    from lehr.cluster import bridge

    ray.init(address=address, namespace=bridge.NAMESPACE, log_to_driver=False)
    made = bridge.Bridge("bench", "http://127.0.0.1:1", "", tempfile.mkdtemp(), Hellos())  # type: ignore[arg-type]
    threading.Thread(target=made.watch, daemon=True).start()
    me = psutil.Process()
    for _ in sys.stdin:
        gc.collect()
        megabytes = me.memory_info().rss / 1e6
        print(f"memory {megabytes:.2f} {len(gc.get_objects())} {me.num_threads()}", flush=True)
    os._exit(0)


def main(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"LEHR_HOME": home, "RAY_memory_monitor_refresh_ms": "0"}
        head = {"num_cpus": 1, "num_gpus": 1, "labels": {"lehr.node": "n1"}}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        command = [sys.executable, __file__, "--measure", cluster.address]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        hellos: list[str] = []
        figures: list[str] = []

        def read() -> None:
            # Ray prints here, too.
            for line in child.stdout or ():
                if line.startswith("hello"):
                    hellos.append(line)
                elif line.startswith("memory"):
                    figures.append(line)

        threading.Thread(target=read, daemon=True).start()

        def show(number: int) -> None:
            time.sleep(SETTLED_S)
            print(file=child.stdin, flush=True)
            until(lambda: len(figures) > number, within_s=AGENT_S, what="the figures")
            print(
                "{:>5} {:>9} {:>9} {:>8}".format(number, *figures[number].split()[1:]), flush=True
            )

        print(f"{'nodes':>5} {'MB':>9} {'objects':>9} {'threads':>8}")
        until(lambda: len(hellos) == 1, within_s=AGENT_S, what="the head's agent")
        show(0)
        for number in range(1, nodes + 1):
            node = cluster.add_node(num_cpus=1, num_gpus=1, labels={"lehr.node": "n2"})
            expected = number + 1
            until(lambda n=expected: len(hellos) >= n, within_s=AGENT_S, what="an agent")
            cluster.remove_node(node, allow_graceful=False)
            show(number)
        child.stdin.close()
        child.wait()
        cluster.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12, help="that come and go")
    parser.add_argument("--measure", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    measure(given.measure) if given.measure else main(given.nodes)
