"""Cost of a run or a sweep."""

from __future__ import annotations

from lehr.schemas.base import View


class CostView(View):
    """What was used so far, and what a plan expects."""

    gpu_hours: float
    """From each attempt's start to the end of its processes, times its GPUs. While they live, the
    end is now.
    """
    attempts: int
    """Number of attempts, those that failed or were requeued included."""
    gpu: str | None = None
    """Kind of GPU, from the device that a trainer saw, else as requested; null if unknown."""
    dollars_per_gpu_hour: float | None = None
    """Price of that kind in Lehr's table of GPUs: rounded, on demand. Yours may differ."""
    dollars: float | None = None
    """GPU-hours at that price."""
    planned_gpu_hours: float | None = None
    """What `lehr plan` expects of all its runs on that kind of GPU, without earlier measurements;
    of a sweep with more than 64 trials, computed from 64 of them.
    """
