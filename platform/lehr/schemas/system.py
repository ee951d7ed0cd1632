"""What nodes did over time: CPU, memory, disk, network, GPUs."""

from __future__ import annotations

from lehr.schemas.base import View


class HostHistory(View):
    """Means of each slot of time; null where nothing was measured."""

    cpu: list[float | None] = []
    """Share of all CPUs in use, 0 to 1."""
    ram_used_bytes: list[float | None] = []
    ram_bytes: list[float | None] = []
    disk_used_bytes: list[float | None] = []
    """Of the disk that has the run directories."""
    disk_bytes: list[float | None] = []
    disk_read_bytes_per_s: list[float | None] = []
    disk_write_bytes_per_s: list[float | None] = []
    network_in_bytes_per_s: list[float | None] = []
    """Of all cards together, without what processes of the node send to each other."""
    network_out_bytes_per_s: list[float | None] = []


class GpuHistory(View):
    index: int
    utilization: list[float | None] = []
    """Share of the time in which a kernel ran, 0 to 1."""
    memory_used_bytes: list[float | None] = []
    power_watts: list[float | None] = []
    temperature_celsius: list[float | None] = []


class SystemHistory(View):
    """A node's measurements at regular times.

    They are kept at 10 s for an hour, 1 min for a day and 15 min for 90 days.
    """

    node: str
    step_s: float
    """Length of a slot; each value is the mean of its slot."""
    times: list[float]
    """Begin of each slot."""
    host: HostHistory
    """Lists as long as ``times``; empty if never measured."""
    gpus: list[GpuHistory] = []


class AttemptSystem(View):
    number: int
    nodes: list[SystemHistory]
    """While the attempt ran, with the GPUs that it held."""


class RunSystem(View):
    run_id: str
    attempts: list[AttemptSystem]
