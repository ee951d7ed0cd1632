"""Nodes, their GPUs, and the queue."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View


class GpuView(View):
    index: int
    name: str
    """E.g. "NVIDIA A100-SXM4-80GB", or "logical GPU"."""
    memory_bytes: int | None = None
    utilization: float | None = None
    """Share of the driver's last sample period (1/6 to 1 s) in which a kernel ran, 0 to 1. Null
    where unknown: a logical GPU, no nvidia-ml-py on the node, a driver that does not answer.
    """
    memory_used_bytes: int | None = None
    """Of all processes, without what the driver reserves."""
    temperature_celsius: float | None = None
    run_id: str | None = None
    run_name: str | None = None
    attempt: int | None = None
    since: float | None = None


class NodeView(View):
    name: str
    address: str
    alive: bool
    logical: bool
    """Its GPUs are logical: the trainer runs on its CPU."""
    gpus: list[GpuView]
    cpus: int | None = None
    last_seen_at: float | None = None
    excluded: str | None = None
    """Why no new runs are placed on it, until it is readmitted; None for a node in use."""


class ClusterView(View):
    state: Literal["starting", "up", "down"]
    message: str | None = None
    nodes: list[NodeView]
    gpus_total: int
    gpus_busy: int


class QueueEntry(View):
    position: int
    run_id: str
    name: str
    project: str = "default"
    gpus: int
    nodes: int
    gpu_type: str | None
    priority: int
    reason: str
    queued_at: float
