"""Cost of what ran: GPU-hours of attempts, and the GPU whose price counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from lehr_trainer.planning.hardware import GpuType, find_gpu, gpu_of_kind


def gpu_hours(attempts: Iterable[tuple[int, float, float | None]], now: float) -> float:
    """Add up the GPU-hours of attempts.

    Args:
        attempts: for each its number of GPUs and the times, in seconds, at which it began and
            ended. One that lives has no end, and is counted until ``now``.
        now: the time.
    """
    return sum(
        gpus * max((now if ended is None else ended) - began, 0.0) / 3600
        for gpus, began, ended in attempts
    )


def priced_gpu(device: str | None, gpu_type: str | None) -> GpuType | None:
    """Return the GPU whose price counts: the one that a trainer saw, else the requested one.

    None if it is not in the table of GPUs. A trainer on a CPU costs nothing that is known here.
    """
    if device is not None:
        return find_gpu(device)
    return None if gpu_type is None else gpu_of_kind(gpu_type)
