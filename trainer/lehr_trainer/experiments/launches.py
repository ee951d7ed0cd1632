"""Counts of a step's kernels and of the host's launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
_COMPILED = ("cpp_fused", "graph_", "triton")

ON_CPU = (
    "operators of one profiled step that call no other, and generated kernels: on a CPU each "
    "is a call that computes"
)
ON_CUDA = "kernels that the device ran in one profiled step"


def name_generated_kernels() -> None:
    """Let a profile show each kernel that Inductor writes for the CPU, from now on.

    Each kernel then includes headers that take longer to compile than the kernel itself.
    """
    from torch._inductor import config as inductor

    inductor.cpp.enable_kernel_profile = True


def count(act: Callable[[], None], device: torch.device) -> dict[str, float]:
    """Count ``kernels``, and on CUDA ``launches``: calls of the host; a replayed graph is one."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiled:
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    events = profiled.events() or []
    if device.type == "cuda":
        return _on_cuda(events)
    return {"kernels": float(sum(map(computes, events)))}


def computes(event: Any) -> bool:
    """Return whether a CPU's event computes: it calls no other operator that does."""
    if any(_computing_name(child.name) for child in event.cpu_children):
        return False
    return _computing_name(event.name)


def _computing_name(name: str) -> bool:
    return name.startswith(("aten::", "mkldnn::", "mkl::")) or any(
        mark in name for mark in _COMPILED
    )


def _on_cuda(events: Iterable[Any]) -> dict[str, float]:
    kernels = launches = 0
    for event in events:
        if event.device_type == DeviceType.CUDA:
            kernels += not event.name.startswith(("Memcpy", "Memset")) and not getattr(
                event, "is_user_annotation", False
            )
        else:
            launches += event.name.startswith(_LAUNCHES)
    return {"kernels": float(kernels), "launches": float(launches)}
