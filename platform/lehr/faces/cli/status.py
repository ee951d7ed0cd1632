"""``lehr status``: show the server, its GPUs, active runs and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lehr.base import formats
from lehr.faces.cli.connect import connect
from lehr.faces.cli.live import silence
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    print_fitting,
    print_json,
    table,
)

if TYPE_CHECKING:
    from lehr.schemas.cluster import ClusterView, GpuView, QueueEntry
    from lehr.schemas.runs import RunView

app = typer.Typer(rich_markup_mode=None)
_ACTIVE = ("starting", "running", "stopping")


@app.command("status")
def status(as_json: JsonOption = False) -> None:
    """Show the server, its GPUs, active runs and the length of the queue.

    JSON: {server, version, cluster: ClusterView, queue: [QueueEntry], active: [RunView]}.
    """
    client = connect()
    health = client.health()
    cluster = client.cluster()
    queue = client.queue()
    active = [run.view for run in client.runs(states=_ACTIVE)]
    if as_json:
        print_json(
            {
                "server": client.server,
                "version": health.version,
                "cluster": cluster,
                "queue": queue,
                "active": active,
            }
        )
        return
    out = console()
    out.print(f"[bold]Lehr {health.version}[/] at {client.server}")
    out.print(f"  cluster  {_cluster_line(cluster)}")
    out.print(f"  runs     {len(active)} active, {len(queue)} waiting")
    for run in active:
        if (why := silence(run)) is not None:
            out.print(f"           {escaped(run.name)}: {escaped(why)}{_gone(run, cluster)}")
    for node in cluster.nodes:
        _print_node(node.name, cluster)
    if queue:
        out.print()
        _print_queue(queue)


def _cluster_line(cluster: ClusterView) -> str:
    if cluster.state != "up":
        return f"{cluster.state}{f': {escaped(cluster.message)}' if cluster.message else ''}"
    if not cluster.gpus_total and cluster.message:
        return f"up, without GPUs: {escaped(cluster.message)}"
    nodes = [node for node in cluster.nodes if not node.left]
    gpus = sum(len(node.gpus) for node in nodes)
    text = f"up, {cluster.gpus_busy} of {gpus} GPUs busy"
    text += f" on {len(nodes)} nodes" if len(nodes) != 1 else ""
    rest = gpus - cluster.gpus_busy - cluster.gpus_free
    text += f"; {cluster.gpus_free} free, {rest} on nodes that get no runs" if rest > 0 else ""
    if any(node.logical for node in cluster.nodes):
        text += " (logical GPUs: training runs on the CPU)"
    return text


def _gone(run: RunView, cluster: ClusterView) -> str:
    """Return which nodes of the run are not there, and why; empty if all are."""
    mine = {gpu.node for gpu in run.placement}
    gone = [node for node in cluster.nodes if node.name in mine and not node.alive]
    return escaped("".join(f"; node {node.name} {node.no_runs}" for node in gone))


def _print_node(name: str, cluster: ClusterView) -> None:
    node = next(node for node in cluster.nodes if node.name == name)
    out = console()
    out.print()
    why = "" if node.no_runs is None else f"  [red]{escaped(node.no_runs)}[/]"
    if cluster.state == "starting" and not cluster.message and node.away is None:
        why = "  [dim]starting; its GPUs will be available in a few seconds[/]"
    elif node.left:
        why = f"  [dim]{escaped(node.no_runs or '')}[/]"
    out.print(f"{escaped(node.name)}  [dim]{escaped(node.address)}[/]{why}")
    for note in node.notes:
        out.print(f"  [red]{escaped(note)}[/]")
    # Logical GPUs have no measurements.
    real = not node.logical
    figures = ("used", "memory", "°C") if real else ()
    rows = table("GPU", "what", *figures, "run", "since", right=figures)
    unheld = "free" if node.no_runs is None else "not given out"
    for gpu in node.gpus:
        rows.add_row(
            str(gpu.index),
            escaped(gpu.name),
            *(_figures(gpu) if real else ()),
            (gpu.run_name and escaped(gpu.run_name)) or f"[dim]{unheld}[/]",
            formats.ago(gpu.since) if gpu.run_name else "",
        )
    out.print(rows)


def _figures(gpu: GpuView) -> tuple[str, str, str]:
    memory = formats.NOTHING
    if gpu.memory_used_bytes is not None:
        of = f" of {formats.size(gpu.memory_bytes)}" if gpu.memory_bytes is not None else ""
        memory = f"{formats.size(gpu.memory_used_bytes)}{of}"
    warmth = gpu.temperature_celsius
    return (
        formats.share(gpu.utilization),
        memory,
        formats.NOTHING if warmth is None else f"{warmth:.0f}",
    )


def _print_queue(queue: list[QueueEntry]) -> None:
    rows = table("#", "waiting", "GPUs", "why", right=("#", "GPUs"))
    for entry in queue:
        rows.add_row(str(entry.position), entry.name, str(entry.gpus), escaped(entry.reason))
    print_fitting(rows, fold="why")
