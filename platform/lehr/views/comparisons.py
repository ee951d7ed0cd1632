"""Runs side by side."""

from __future__ import annotations

from typing import Any, Literal

from lehr.views.base import View


class DifferenceView(View):
    path: str
    values: list[Any]
    """In the runs' order; "—" where a run does not have it."""
    factor: bool
    """It may change the outcome, and is not the seed."""


class StandingView(View):
    run_id: str
    name: str = ""
    state: str = ""
    x: float | None = None
    """The run's last point of the metric at or before ``common_x``."""
    value: float | None = None
    delta: float | None = None
    """From the baseline's, the first run."""
    tokens_per_s: float | None = None
    """Median over the run."""
    step_time_s: float | None = None
    """Median over the run."""
    mfu: float | None = None
    """Median over the run, a share of the GPUs' dense peak."""
    memory_bytes: float | None = None
    """The most that one GPU held; on a CPU, the process."""


class ComparisonView(View):
    runs: list[str]
    metric: str
    x_axis: Literal["step", "tokens", "time", "flops"]
    common_x: float | None = None
    """The farthest that every run reached: values are taken there."""
    standings: list[StandingView]
    differences: list[DifferenceView]
    noise: float | None = None
    """Standard deviation between runs that differ only in their seed, if there are any."""
    notes: list[str]
    """What the comparison cannot say, in words."""
