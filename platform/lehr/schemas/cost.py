"""Cost of a run, a sweep or a rollout."""

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
    """Kind of GPU, from the device that a trainer saw, else as requested; null if unknown, or if
    the stages of a rollout used several kinds.
    """
    dollars_per_gpu_hour: float | None = None
    """Price of that kind in Lehr's table of GPUs: rounded, on demand. Yours may differ."""
    dollars: float | None = None
    """GPU-hours at that price; of a rollout, the sum over its stages."""
    planned_gpu_hours: float | None = None
    """What `lehr plan` expects of all its runs on that kind of GPU, without earlier measurements;
    of a sweep with more than 64 trials, computed from 64 of them; of a rollout, of all runs of all
    stages that it has, whether they have begun or not.
    """
    planned_dollars: float | None = None
    """The planned GPU-hours at the price of their kind of GPU."""
    planned_basis: str | None = None
    """How the planned GPU-hours were obtained, e.g. `at 42 % MFU (published runs on H100 reach 35
    to 44 %)`. Runs measured here are not used. Recomputation is added. Null if none are planned.
    """
