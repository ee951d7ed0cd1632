"""Runs side by side."""

from __future__ import annotations

from typing import Any, Literal

from lehr.analysis.held_out import HeldOutVerdict
from lehr.schemas.base import View


class DifferenceView(View):
    path: str
    values: list[Any]
    """In the runs' order; "—" where a run does not have it."""
    factor: bool
    """It may change the outcome, and is not the seed."""


class RunResultView(View):
    run_id: str
    name: str = ""
    state: str = ""
    x: float | None = None
    """The run's last point of the metric at or before ``common_x``."""
    value: float | None = None
    delta: float | None = None
    """From the baseline's, the first run; null where ``incomparable`` tells why."""
    incomparable: str | None = None
    """Why its value is not set beside the baseline's: they are of different held-out sets."""
    held_out: str | None = None
    """Digest of the held-out set that it was last evaluated on; null where none was recorded."""
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
    results: list[RunResultView]
    differences: list[DifferenceView]
    noise: float | None = None
    """Standard deviation between runs that differ only in their seed, if there are any."""
    held_out: HeldOutVerdict = "unknown"
    """Whether the runs that were evaluated were evaluated on one held-out set. Where it is
    ``different``, no metric under ``val/`` compares between the sets. ``unknown``: some recorded no
    digest of it."""
    held_out_note: str | None = None
    """The same in words, where it matters for ``metric``; it is the first of the notes, too."""
    notes: list[str]
    """What the comparison cannot say, in words."""
