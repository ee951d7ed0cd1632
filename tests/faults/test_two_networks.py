"""Two nodes with a network each: a real gang of two trains over the cable between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lehr.faces.cli.cluster_checks import check_link
from lehr_testing.faults.network import namespace
from lehr_testing.faults.second_node import with_second_node
from lehr_testing.server import Server, marked_processes
from lehr_testing.specs import run as run_spec
from lehr_testing.specs import text_corpus
from lehr_testing.trainer import MANY, reached
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 20


def weights(server: Server, run_id: str) -> dict[str, str]:
    """SHA-256 by file of the last checkpoint's tensors."""
    folder = server.home / "runs" / run_id / "attempt-1" / "checkpoints" / f"step-{STEPS:08d}"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {n: entry["sha256"] for n, entry in files.items() if n.endswith(".safetensors")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two nodes of two GPUs, each with a network of its own."""
    with namespace() as network:
        server = Server(tmp_path_factory.mktemp("two-networks") / "home", gpus=2)
        for node in with_second_node(server, network, gpus=2):
            yield server, node.network


def test_link_between_two_networks_is_measured(server, monkeypatch):
    server, network = server
    monkeypatch.setenv("LEHR_HOME", str(server.home))
    limit = ["root", "tbf", "rate", "100mbit", "burst", "256kb", "latency", "50ms"]
    subprocess.run(["tc", "qdisc", "add", "dev", network.device, *limit], check=True)
    try:
        checks = check_link()
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", network.device, "root"], check=True)
    # Only what this end sends goes through the limit.
    slow, fast = sorted(float(check.found.split()[3]) for check in checks)
    assert (slow, fast > 2 * slow) == (pytest.approx(0.1, abs=0.05), True), checks


def test_gang_over_two_networks_has_the_weights_of_two_ranks_on_one_node(server, tmp_path):
    server, network = server
    corpus = text_corpus(tmp_path / "corpus")
    client = server.client()
    together = client.submit(run_spec(corpus, "one-node", gpus=2, steps=STEPS))
    spec = run_spec(corpus, "two-nodes", gpus=2, steps=STEPS)
    spec["resources"]["nodes"] = 2
    # Both ends of the cable have one name: gloo is to meet over it and nothing else.
    spec["env"] = {"GLOO_SOCKET_IFNAME": network.device}
    apart = client.submit(spec)
    launchers: set[int] = set()

    def ended() -> bool:
        found = marked_processes(f"{apart.id}-1").items()
        launchers.update(pid for pid, line in found if "torch.distributed.run" in line)
        return apart.refresh().state in {"completed", "failed"}

    until(ended, within_s=300, what="the gang over two networks to end")
    assert apart.state == "completed", apart.reason
    assert len(launchers) == 2
    together.wait(timeout_s=240)
    assert together.state == "completed", together.reason
    assert len({gpu.node for gpu in apart.detail.placement}) == 2
    assert len({gpu.node for gpu in together.refresh().detail.placement}) == 1
    assert weights(server, apart.id) == weights(server, together.id)
    names = {stream.name for stream in apart.log_streams()}
    assert {"rank-0.log", "rank-1.log"} <= names


@pytest.mark.parametrize("nodes", [1, 2])
def test_node_on_which_a_run_hangs_twice_is_avoided_if_another_can_hold_it(server, tmp_path, nodes):
    server, network = server
    corpus = text_corpus(tmp_path / "corpus")
    spec = run_spec(corpus, f"hangs-{nodes}", gpus=2, steps=MANY, parallel={"hang_limit_s": 5})
    spec["resources"]["nodes"] = nodes
    spec["env"] = {"GLOO_SOCKET_IFNAME": network.device} if nodes == 2 else {}
    run = server.client().submit(spec)
    for attempt in (1, 2):
        reached(server.home / "runs" / run.id / f"attempt-{attempt}", 5)
        hung = run.refresh().detail.placement[-1].node
        [last] = [
            pid
            for pid in marked_processes(f"{run.id}-{attempt}")
            if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        ]
        os.kill(last, signal.SIGSTOP)
        until(lambda a=attempt: run.refresh().attempt > a, within_s=200, what="another attempt")
    moves = [event.message for event in run.events() if event.kind == "transition"]
    hangs = [message for message in moves if message and "hang at step" in message]
    assert len(hangs) == 2
    assert all(f"rank 1 on {hung} cannot answer: its process is stopped" in one for one in hangs)
    names = {stream.name for stream in run.log_streams()}
    assert "hang.log" in names
    until(lambda: run.refresh().state == "running", within_s=120, what="the third attempt")
    used = {gpu.node for gpu in run.detail.placement}
    if nodes == 1:
        assert hung not in used
        assert any(f"not on node {hung}, which failed it twice" in one for one in moves)
    else:
        assert any(
            f"node {hung} failed it twice, but no others can hold it" in one for one in moves
        )
    run.cancel()
    run.wait(timeout_s=120)
