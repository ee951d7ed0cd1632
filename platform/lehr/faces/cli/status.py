"""``lehr status`` and ``lehr queue``: the server, its GPUs, active runs, and what waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.live import silence
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    notes,
    print_fitting,
    print_json,
    print_result,
    table,
)

if TYPE_CHECKING:
    from lehr.schemas.cluster import ClusterView, GpuView, NodeView, QueueEntry
    from lehr.schemas.runs import RunView

app = typer.Typer(rich_markup_mode=None)


@app.command("status")
def status(as_json: JsonOption = False) -> None:
    """Show the server, its GPUs, active runs and the length of the queue.

    JSON: {server, version, cluster: ClusterView, queue: [QueueEntry], active: [RunView]}.
    """
    from lehr.control.lifecycle import REPORTING

    client = connect()
    health = client.health()
    cluster = client.cluster()
    queue = client.queue()
    active = [run.view for run in client.runs(states=sorted(REPORTING))]
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
        _print_node(node, cluster)
    if queue:
        out.print()
        _print_queue(queue)


@app.command("queue")
def queue(
    ref: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run whose priority --priority changes.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=-100,
            max=100,
            help="New priority of RUN, -100 to 100; higher ones start first. Default of a run: 0.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List queued runs in the order of their start, with the reason why each waits.

    Also shows expected starts, computed from the measured speed of running trainings. With RUN and
    --priority: change the place of a run. A run that has GPUs keeps them.

    JSON: {queue: [QueueEntry]}, or {run: RunDetail}.
    """
    if ref is not None and priority is not None:
        run = connect().run(ref).set_priority(priority)
        text = f"{escaped(run.name)}: {run.state}, priority {run.view.priority}"
        print_result({"run": run.detail}, text, as_json=as_json)
        return
    if ref is not None or priority is not None:
        raise UserError(
            "RUN and --priority belong together.", hint="lehr queue RUN --priority N, or lehr queue"
        )
    waiting = connect().queue()
    if as_json:
        print_json({"queue": waiting})
        return
    if not waiting:
        notes().print("The queue is empty.")
        return
    _print_queue(waiting)


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


def _print_node(node: NodeView, cluster: ClusterView) -> None:
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
    figures = ("used", "memory", "°C")  # Logical GPUs have none.
    rows = table("GPU", "what", *figures, "run", "since", right=figures)
    unheld = "free" if node.no_runs is None else "not given out"
    for gpu in node.gpus:
        rows.add_row(
            str(gpu.index),
            escaped(gpu.name),
            *_figures(gpu),
            (gpu.run_name and escaped(gpu.run_name)) or f"[dim]{unheld}[/]",
            formats.ago(gpu.since) if gpu.run_name else "",
        )
    print_fitting(rows, fold="run", spare=figures)


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


def _print_queue(waiting: list[QueueEntry]) -> None:
    several = len({entry.project for entry in waiting}) > 1
    names = ("#", "id", "run", "project", "GPUs", "priority", "since", "start", "why")
    rows = table(*names, right=("#", "priority"))
    for entry in waiting:
        gpus = f"{entry.gpus} x {escaped(entry.gpu_type or 'any')}"
        rows.add_row(
            str(entry.position),
            entry.run_id,
            escaped(entry.name),
            entry.project if several else "",
            f"{gpus} on {entry.nodes} nodes" if entry.nodes > 1 else gpus,
            str(entry.priority),
            formats.ago(entry.queued_at),
            _start(entry),
            escaped(_why(entry)),
        )
    print_fitting(rows, fold="why", spare=["since", "priority", "project", "start"])


def _start(entry: QueueEntry) -> str:
    if entry.expected_start is None:
        return formats.NOTHING
    return f"in about {formats.duration(max(60.0, entry.expected_start - time.time()))}"


def _why(entry: QueueEntry) -> str:
    """Return why it waits, and the reason for its expected start."""
    if not entry.expected_because:
        return entry.reason
    when = "" if entry.expected_start is None else "when "
    return f"{entry.reason}; {when}{entry.expected_because}"
