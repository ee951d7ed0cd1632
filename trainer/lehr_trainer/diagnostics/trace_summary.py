"""Summary of where steady steps spend their time, from a Chrome trace: pure, no torch.

Each instant of the profiled steps belongs to one class: a matrix product if one runs, else another
kernel, else a copy, else communication (which is then exposed), else idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_CLASSES = ("matmul", "other", "copy", "communication")
"""Classes by priority: an instant in which several run belongs to the first."""

GPU_EVENTS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STEP = re.compile(r"ProfilerStep#\d+")
_COMMUNICATION = re.compile(
    r"nccl|c10d::|gloo:|all_?reduce|all_?gather|reduce_?scatter", re.IGNORECASE
)
_COPY = re.compile(r"memcpy|memset|aten::(copy_|_to_copy|zero_|fill_)$", re.IGNORECASE)
_MATMUL = re.compile(
    r"gemm|cublas|cutlass|nvjet|xmma|splitkreduce|wgmma|"
    r"aten::(mm|addmm|bmm|baddbmm|addbmm|mv|_scaled_mm)$|mkldnn_linear|"
    r"flash|fmha|efficient_attention|_scaled_dot_product",
    re.IGNORECASE,
)
"""Attention kernels are matrix products too."""


@dataclass(frozen=True)
class Summary:
    """Shares of the profiled steps' time; they add up to 1."""

    device: str
    """gpu: kernels on the device. cpu: operators on the host."""
    steps: int
    step_ms: float
    matmul: float
    other_kernels: float
    copies: float
    exposed_communication: float
    idle: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        return (
            f"{self.steps} steady steps of {self.step_ms:,.1f} ms on the {self.device}: "
            f"{self.matmul:.1%} matrix products, {self.other_kernels:.1%} other kernels, "
            f"{self.copies:.1%} copies, {self.exposed_communication:.1%} exposed communication, "
            f"{self.idle:.1%} idle"
        )


def summarise(events: Iterable[Mapping[str, Any]]) -> Summary:
    """Summarise a trace's ``traceEvents``: its profiled steps, or all of it if there is none."""
    spans = [e for e in events if e.get("ph") == "X" and "ts" in e]
    on_gpu = [e for e in spans if e.get("cat") in GPU_EVENTS]
    work = on_gpu or [e for e in spans if e.get("cat") == "cpu_op"]
    # The profiler marks a step on the host and, with a GPU, on the device's rows too.
    marks = [e for e in spans if _STEP.fullmatch(str(e.get("name", "")))]
    rows = [e for e in marks if e.get("cat") == "gpu_user_annotation"] if on_gpu else marks
    rows = rows or marks
    begin = min((float(e["ts"]) for e in rows or work), default=0.0)
    end = max((float(e["ts"]) + float(e.get("dur", 0)) for e in rows or work), default=0.0)
    busy = class_times(work, begin, end)
    length = end - begin
    steps = len({e["name"] for e in rows})
    shares = {name: busy[name] / length if length else 0.0 for name in _CLASSES}
    return Summary(
        device="gpu" if on_gpu else "cpu",
        steps=steps,
        step_ms=length / 1000 / max(1, steps),
        matmul=shares["matmul"],
        other_kernels=shares["other"],
        copies=shares["copy"],
        exposed_communication=shares["communication"],
        idle=1.0 - sum(shares.values()) if length else 0.0,
    )


def kind_of(event: Mapping[str, Any]) -> str:
    """Classify an event: matmul, other, copy or communication."""
    name = str(event.get("name", ""))
    if _COMMUNICATION.search(name):
        return "communication"
    if event.get("cat") in {"gpu_memcpy", "gpu_memset"} or _COPY.search(name):
        return "copy"
    return "matmul" if _MATMUL.search(name) else "other"


def class_times(work: Iterable[Mapping[str, Any]], begin: float, end: float) -> dict[str, float]:
    """Add up the time of each class between ``begin`` and ``end``: a sweep over all event ends."""
    edges: list[tuple[float, int, str]] = []
    for event in work:
        start = max(begin, float(event["ts"]))
        stop = min(end, float(event["ts"]) + float(event.get("dur", 0)))
        if stop > start:
            kind = kind_of(event)
            edges += [(start, 1, kind), (stop, -1, kind)]
    edges.sort(key=lambda edge: edge[0])
    running = dict.fromkeys(_CLASSES, 0)
    total = dict.fromkeys(_CLASSES, 0.0)
    before = begin
    for time, change, kind in edges:
        leading = next((name for name in _CLASSES if running[name]), None)
        if leading is not None:
            total[leading] += time - before
        running[kind] += change
        before = time
    return total
