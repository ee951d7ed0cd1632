"""Nodes: let machines join and leave, exclude and readmit them, set their ends."""

from __future__ import annotations

import math
import platform
import re
import time
from collections import Counter, defaultdict
from importlib.metadata import version
from typing import Any

from lehr.analysis.idle_gpus import DOWN, IN_USE, UNUSED, UNUSED_BELOW, cluster_history
from lehr.app.services.context import Context
from lehr.base import home, signed_tokens
from lehr.cluster.ray_head import RayAccess
from lehr.control.nodes import LEFT
from lehr.errors import NotFound, RayStarting, UserError
from lehr.schemas.cluster import (
    ClusterHistory,
    ClusterView,
    JoinView,
    LeaveView,
    NodeFigures,
    NodeHistory,
    RunSpan,
    SeenSpan,
    UnusedSpan,
)
from lehr.store.records.cluster import FIGURES, MACHINE, MINUTE_S, MINUTES_KEPT_S, short

FARTHEST_S = 2 * 366 * 86_400.0
PARTS = 300  # The most points of a curve of a node.
OF_MACHINE = {"utilization": "cpu_utilization", "memory_used_bytes": "ram_used_bytes"}


def see_cluster(context: Context) -> None:
    """Record how the nodes and the queue are now, for ``show_history``."""
    queued = [entry for entry in context.cluster_views.queue() if entry.gpus][:1]
    seen: dict[str, dict[str, Any]] = {"": {"kind": "nothing queued"}}
    for run in context.store.runs.by_ids([entry.run_id for entry in queued]):
        why = run.pending_reason or "was submitted just now"
        who = {"project": run.project, "person": run.submitted_by}
        seen[""] = {"kind": re.split(r" \(|[:;]", why)[0], "why": f"{run.name} {why}", **who}
    for node in context.cluster_views.cluster().nodes:
        kind = DOWN if not node.alive else "not given out" if node.no_runs else IN_USE
        seen[node.name] = {"kind": kind, "why": node.no_runs or "", "gpus": len(node.gpus)}
    context.store.cluster_spans.see(seen)


def record_minute(context: Context) -> None:
    """Record the figures of all nodes, and which GPUs runs held in the last minute without use."""
    means = context.dispatcher.cluster.take_means()
    context.store.node_minutes.add(means)
    use = {
        (one["node"], one["gpu"]): one["utilization"]
        for one in means
        if one["utilization"] is not None
    }
    unused = {
        f"{node.name} {gpu.index}": {"kind": UNUSED, "node": node.name, "gpu": gpu.index}
        for node in context.cluster_views.cluster().nodes
        for gpu in node.gpus
        if gpu.run_id and use.get((node.name, gpu.index), 1.0) < UNUSED_BELOW
    }
    context.store.cluster_spans.see(unused, for_s=MINUTE_S)


def show_figures(context: Context, name: str, since: float | None) -> NodeFigures:
    """Return a node's figures since then, of the last seven days at most; None: of 24 hours.

    Raises:
        NotFound: the cluster has no such node.
        UserError: ``since`` is not over.
    """
    context.dispatcher.check_node(name)
    now = context.store.clock()
    since = now - 86_400.0 if since is None else since
    if since >= now:
        raise UserError(
            f"since is {since:.0f}; it must be before now ({now:.0f}), in seconds since the epoch."
        )
    began = max(since, now - MINUTES_KEPT_S)
    # Shorter ones would have gaps: minutes are as long as the thread that counts them is late.
    part_s = max(2 * MINUTE_S, (now - began) / PARTS)
    count = max(1, math.ceil((now - began) / part_s - 1e-9))
    figures: dict[str, list[float | None]] = {}
    for gpu, part, *means in context.store.node_minutes.parts(name, began, part_s):
        for figure, mean in zip(FIGURES, means, strict=True):
            if mean is not None:
                of = OF_MACHINE.get(figure, figure) if gpu == MACHINE else f"gpu{gpu}_{figure}"
                values = figures.setdefault(f"system/{of}", [None] * count)
                values[part] = short(mean)
    return NodeFigures(node=name, began=began, part_s=part_s, figures=figures)


def show_history(context: Context, hours: float) -> ClusterHistory:
    """Return who held each GPU in the last hours, and why others were idle."""
    now = context.store.clock()
    began = now - hours * 3600
    nodes: dict[str, NodeHistory] = defaultdict(NodeHistory)
    for row in context.store.cluster_spans.since(began):
        times = {"began": max(row.began, began), "ended": row.ended}
        if row.seen["kind"] == UNUSED:
            nodes[row.seen["node"]].unused.append(UnusedSpan(gpu=row.seen["gpu"], **times))
            continue
        span = SeenSpan(**times, **row.seen)
        nodes[row.node].gpus = span.gpus
        nodes[row.node].spans.append(span)
    for held in context.store.attempts.held_since(began):
        for share in held.pop("placement"):
            node, gpus = nodes[share["node"]], share["gpus"]
            node.gpus = max(node.gpus, 1 + max(gpus, default=-1))
            node.runs.append(RunSpan(gpus=gpus, **held))
    queue = nodes.pop("", NodeHistory()).spans
    named = [node.model_copy(update={"name": name}) for name, node in sorted(nodes.items())]
    return cluster_history(named, queue, began, now)


def exclude_node(context: Context, name: str, reason: str) -> ClusterView:
    """Place nothing more on the node; running attempts go on.

    Raises:
        NotFound: the cluster has no such node.
    """
    context.dispatcher.exclude_node(name, reason)
    return context.cluster_views.cluster()


def readmit_node(context: Context, name: str) -> ClusterView:
    """Give the node work again; its earlier failures no longer count.

    Raises:
        NotFound: the cluster has no such node.
    """
    context.dispatcher.readmit_node(name)
    return context.cluster_views.cluster()


def set_node_until(context: Context, name: str, until: float | None) -> ClusterView:
    """Record until when the node is available; None: it has no end.

    Raises:
        NotFound: the cluster has no such node.
        UserError: the time is over, or too far away.
    """
    check_until(context, until)
    context.dispatcher.check_node(name)
    context.store.nodes.set_until(name, until)
    context.dispatcher.wake()
    return context.cluster_views.cluster()


def check_until(context: Context, until: float | None) -> None:
    """Raise UserError if a node cannot be available until this time."""
    now = context.store.clock()
    if until is not None and not now < until < now + FARTHEST_S:
        raise UserError(
            f"until is {until:.0f}; it must be after now ({now:.0f}) and within two years, in "
            "seconds since the epoch.",
            hint="To place nothing more on a node from now on: lehr node exclude NODE",
        )


def join(
    context: Context,
    node: str,
    *,
    readmit: bool,
    check: bool,
    until: float | None,
    secret: str,
    server_url: str,
    ray: RayAccess,
) -> JoinView:
    """Return what the machine needs to be a node of that name.

    ``readmit``: a node that had left gets work again. ``check``: the machine only looks, so it gets
    no secrets, and nothing changes. ``until``: when its availability ends; None: as declared
    before. ``secret``: the home's token. ``server_url``: where shippers reach this server.

    Raises:
        RayStarting: Ray is not up yet.
        UserError: ``until`` is over, or too far away.
    """
    check_until(context, until)
    view = context.cluster_views.cluster()
    if view.state != "up":
        # A machine that joins a head whose own node is missing would wait for a minute, and fail.
        why = f" ({view.message})" if view.message else ""
        raise RayStarting(f"Ray is still starting{why}.", hint="Try again in a few seconds.")
    known = next((one for one in view.nodes if one.name == node), None)
    if readmit and not check and known is not None and known.excluded == LEFT:
        context.dispatcher.readmit_node(node)
    if readmit and not check:
        _record_until(context, node, until)
    folders = [one.runs_folder for one in view.nodes if one.alive and one.name != node]
    return JoinView(
        node=node,
        node_token="" if check else signed_tokens.node_token(secret, node),
        server_url=server_url,
        ray_address=ray.address,
        ray_token=None if check else ray.token,
        ray_session=ray.session,
        versions={
            **_of_nodes(view, but=node),
            "python": platform.python_version(),
            "ray": version("ray"),
            "lehr": version("lehr"),
        },
        runs_dir=str(home.runs_dir(context.home)),
        runs_folder=next((folder for folder in folders if folder), None),
        time=time.time(),
        is_member=known is not None and known.alive,
        name_in_use=known.address if known is not None and known.alive else None,
    )


def _record_until(context: Context, node: str, until: float | None) -> None:
    """Record the end of a machine that joins; forget an earlier end that is over."""
    before = context.store.nodes.until().get(node)
    if until is not None or (before is not None and before <= context.store.clock()):
        context.store.nodes.set_until(node, until)


def leave(context: Context, node: str) -> LeaveView:
    """Place nothing more on the node until it joins again. Its runs continue."""
    runs = {
        gpu.run_id: gpu.run_name
        for one in context.cluster_views.cluster().nodes
        if one.name == node
        for gpu in one.gpus
        if gpu.run_id is not None and gpu.run_name is not None
    }
    try:
        context.dispatcher.exclude_node(node, LEFT)
    except NotFound:
        return LeaveView(node=node, excluded=False)
    return LeaveView(node=node, excluded=True, runs=runs)


def _of_nodes(view: ClusterView, *, but: str) -> dict[str, str]:
    found = {}
    for name in ("torch", "nccl"):
        counted = Counter(
            node.versions[name]
            for node in view.nodes
            if node.alive and node.name != but and name in node.versions
        )
        if counted:
            found[name] = counted.most_common(1)[0][0]
    return found
