"""``/metrics``: metrics of the control plane for Prometheus. Needs the token like all routes.

Counted from the store at each request; nothing is kept between requests.
"""

from __future__ import annotations

import shutil
from contextlib import suppress

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from lehr import __version__
from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr.schemas.cluster import ClusterView
from lehr_api.deps import ServicesDep
from lehr_api.problems import text_responses
from lehr_api.services import Services

router = APIRouter(tags=["cluster"])
_FILES = ("lehr.db", "streams.db", "lehr.db-wal", "streams.db-wal")


@router.get(
    "/metrics",
    response_class=Response,
    responses=text_responses("text/plain"),
)
def prometheus(services: ServicesDep) -> Response:
    """Return metrics of the server in Prometheus' text format: runs, queue, GPUs, attempts,
    control loop, disks, files, process.
    """
    return Response(generate_latest(_registry(services)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _registry(services: Services) -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"lehr_{name}", about, labels, registry=registry)

    gauge("info", "Version of the server.", ("version",)).labels(__version__).set(1)
    runs = gauge("runs", "Runs by state.", ("state",))
    for state in RunState:
        page = services.store.runs.page(states=[state], archived=None, limit=1)
        runs.labels(state.value).set(page.total)
    cluster = services.cluster_views.cluster()
    gauge("cluster_up", "Whether the cluster is up.").set(cluster.state == "up")
    gauge("nodes", "Nodes that answer.").set(sum(node.alive for node in cluster.nodes))
    gauge("gpus", "GPUs of the cluster.").set(cluster.gpus_total)
    gauge("gpus_busy", "GPUs held by runs.").set(cluster.gpus_busy)
    _gpus(registry, cluster)
    waiting = services.cluster_views.queue()
    gauge("queue_runs", "Runs that wait for GPUs.").set(len(waiting))
    gauge("queue_gpus", "GPUs requested by queued runs.").set(sum(entry.gpus for entry in waiting))
    attempts = services.store.attempts.list_open()
    gauge("attempts_open", "Attempts whose streams are not complete yet.").set(len(attempts))
    runs = gauge("runs_by_liveness", "Runs that have a living attempt.", ("liveness",))
    for liveness in services.dispatcher.liveness().values():
        runs.labels(liveness.value).inc()
    gauge("since_tick_seconds", "Seconds since the control loop last succeeded.").set(
        services.dispatcher.since_tick_s()
    )
    free = gauge("disk_free_bytes", "Free space of the folder's disk.", ("folder",))
    home = services.settings.home
    for name, folder in (("home", home), ("runs", homes.runs_dir(home))):
        with suppress(OSError):  # No run has begun, so the folder is not there yet.
            free.labels(name).set(shutil.disk_usage(folder).free)
    size = gauge("file_bytes", "Size of the databases.", ("file",))
    for name in _FILES:
        path = services.settings.home / name
        if path.exists():
            size.labels(name).set(path.stat().st_size)
    return registry


def _gpus(registry: CollectorRegistry, cluster: ClusterView) -> None:
    """Add samples of each GPU; an unknown figure has no sample."""
    about = {
        "utilization": ("gpu_utilization_ratio", "Share of time in which a kernel ran."),
        "memory_used_bytes": ("gpu_memory_used_bytes", "Memory in use, of all processes."),
        "temperature_celsius": ("gpu_temperature_celsius", "Temperature of the GPU's die."),
    }
    for field, (name, text) in about.items():
        gauge = Gauge(f"lehr_{name}", text, ("node", "gpu"), registry=registry)
        for node in cluster.nodes:
            for gpu in node.gpus:
                value = getattr(gpu, field)
                if value is not None:
                    gauge.labels(node.name, str(gpu.index)).set(value)
