"""The checks of ``lehr doctor`` on a cluster: every node as its agent describes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lehr.base import formats, home
from lehr.cluster import ray_head
from lehr.control.queue_entries import CURE
from lehr.faces.check import Check, Status, clock, space
from lehr.schemas.cluster import ClusterView, NodeView

_MUST_AGREE: tuple[tuple[str, str, Status], ...] = (
    ("python", "Python", "bad"),
    ("ray", "Ray", "bad"),
    ("torch", "torch", "bad"),
    ("nccl", "NCCL", "bad"),
    ("lehr", "lehr", "note"),
)
"""By name in a node's versions: its name for people, and how bad a difference is."""
_ON_IT = (
    "On it: systemctl status lehr-node, or ~/.lehr/logs/keeper.log. If it is gone for good, "
    "nothing is to be done."
)
_FOLDERS = {"LEHR_RUNS": "runs", "LEHR_DATA": "data", "LEHR_NODE": "the node's own files"}


def check_cluster(view: ClusterView) -> list[Check]:
    """Return the findings: of the cluster, of each node, and of the nodes together."""
    return [
        *_state(view),
        *troubles(view),
        *(check for node in view.nodes for check in _node(node, up=view.state == "up")),
        *_agreement([node for node in view.nodes if node.alive]),
    ]


def troubles(view: ClusterView) -> list[Check]:
    """Return a finding for each node that answers, and on which something is wrong now."""
    nodes = [node for node in view.nodes if node.alive]
    return [
        *(
            Check(node.name, "bad", "cannot be used", why)
            for node in nodes
            for why in node.problems
        ),
        # What is wrong, and what to do.
        *(
            Check(node.name, "note", *note.partition(": ")[::2])
            for node in nodes
            for note in node.notes
        ),
    ]


def check_link() -> list[Check]:
    """Measure the network from each node to the next one."""
    head = ray_head.recorded(home.home())
    if head is None or not head.running():
        fix = "Run this on the server's machine, while the server is up."
        return [Check("link", "bad", "this machine runs no Ray head", fix)]
    command = [sys.executable, "-P", "-m", "lehr.cluster.link", head.address]
    variables = {**os.environ, **ray_head.driver_environment(home.home())}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Check("link", "bad", f"could not be measured: {last}", "See lehr status.")]
    checks = []
    for pair in map(json.loads, done.stdout.splitlines()):
        if gbits := pair["gbits"]:
            text = f"{pair['ends']}: {gbits:.1f} Gbit/s by TCP, so {8 / gbits:.2f} s for each GB"
            checks.append(Check("link", "ok", f"{text} that a step sends (lehr plan)"))
        else:
            fix = "Open TCP ports 20000 to 29999 between all nodes (docs/cluster.md)."
            checks.append(Check("link", "bad", f"{pair['ends']}: {pair['error']}", fix))
    return checks or [Check("link", "note", "fewer than two nodes with GPUs: nothing to measure")]


def _state(view: ClusterView) -> Iterator[Check]:
    nodes = sum(node.alive for node in view.nodes) if view.state == "up" else len(view.nodes)
    gpus = formats.counted(view.gpus_total, "GPU")
    text = f"{view.state}, {gpus} on {formats.counted(nodes, 'node')}"
    if view.state == "up" and view.gpus_total:
        yield Check("cluster", "ok", text)
    else:
        yield Check("cluster", "note", text, view.message or "See lehr status.")


def _node(node: NodeView, *, up: bool) -> Iterator[Check]:
    if node.left:
        yield Check(node.name, "note", "has left the cluster", "To bring it back: lehr node join")
        return
    if not node.alive:
        if up:  # While Ray starts, no node answers yet.
            why = node.away or "does not answer"
            address = node.address or "address unknown"
            yield Check(node.name, "note", f"{why} ({address})", _ON_IT)
        return
    if node.excluded is not None:
        fix = f"lehr node readmit {node.name}"
        yield Check(node.name, "note", f"excluded: {node.excluded}", fix)
    found = [] if node.clock_offset_s is None else [clock(node.clock_offset_s)]
    found += [
        space(free, f"for {_FOLDERS.get(variable, variable)}")
        for variable, free in node.free_bytes.items()
        if free is not None
    ]
    yield from (replace(check, name=node.name) for check in found if check.status != "ok")
    if not node.problems:
        kind = "logical GPUs" if node.logical else "GPUs"
        yield Check(node.name, "ok", f"{len(node.gpus)} {kind}, {node.address}")


def _agreement(nodes: Sequence[NodeView]) -> Iterator[Check]:
    if len(nodes) < 2:
        return
    for name, shown, status in _MUST_AGREE:
        by_version = Counter(node.versions[name] for node in nodes if name in node.versions)
        if len(by_version) < 2:
            continue
        usual = by_version.most_common(1)[0][0]
        others = [n for n in nodes if name in n.versions and n.versions[name] != usual]
        text = ", ".join(f"{node.name} has {node.versions[name]}" for node in others)
        fix = f"Install the same version on all nodes: {shown} {usual}"
        yield Check(shown, status, f"{text}; the others {usual}", fix)
    folders = {node.runs_folder for node in nodes if node.runs_folder is not None}
    if len(folders) > 1:
        yield Check(
            "folder of runs",
            "note",
            "the nodes do not share it: a run resumes only where its checkpoint is",
            CURE,
        )
