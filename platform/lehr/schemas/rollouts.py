"""Rollouts: stages, gates and their evidence."""

from __future__ import annotations

from typing import Any, Literal

from lehr.schemas.base import View
from lehr.schemas.runs import CostView, RunView

RolloutState = Literal["running", "passed", "failed", "cancelled"]
StageStatus = Literal["waiting", "running", "passed", "failed", "cancelled", "skipped"]
"""waiting: not started yet; skipped: the rollout ended before it."""
GateState = Literal["waiting", "passed", "failed", "not_judged", "skipped", "off"]
"""not_judged: what it measures does not exist here, such as an MFU on a CPU; skipped: the
rollout ended before it was judged; off: switched off.
"""


class GateView(View):
    """The condition of a gate, and what was seen."""

    name: Literal["first_loss", "falling_loss", "no_alerts", "memory", "mfu", "exact_resume"]
    title: str
    """E.g. "first loss"."""
    state: GateState
    expected: str
    """In words and figures; known before the stage has run."""
    seen: str | None = None
    """In words and figures; null while it waits."""
    value: float | None = None
    """What was seen, as a number in ``unit``, if it is one."""
    at_least: float | None = None
    at_most: float | None = None
    """Bounds of ``value``, both included; null where there is none."""
    unit: str | None = None
    """nats, GB or share; null where there is no number."""
    run_id: str | None = None
    """The run that was judged."""
    step: int | None = None
    """Step of the value."""
    judged_at: float | None = None


class StageRunView(View):
    role: Literal["train", "whole", "resumed"]
    """train: the run of all gates but one. whole, resumed: the pair that exact_resume compares;
    without ``whole``, the resumed run is compared with ``train``.
    """
    run: RunView


class StageView(View):
    number: int
    """Counts from 1."""
    name: Literal["cpu", "one_gpu", "two_gpus", "all"]
    title: str
    """E.g. "1 GPU"."""
    state: StageStatus
    reason: str | None = None
    """Why it failed, or what it is doing."""
    gpus: int
    nodes: int
    gpu_type: str | None = None
    model: str
    """A preset's name, or e.g. ``llama of 2 layers``."""
    steps: int
    tokens_per_step: int
    judged_at_step: int
    """Its gates are judged at this step at the latest; in the last stage, while it continues."""
    changes: dict[str, Any]
    """Differences of its run from the rollout's run, by dotted path."""
    gates: list[GateView]
    runs: list[StageRunView]
    """In the order in which they were started."""
    gpu_seconds: float | None = None
    """GPUs held times seconds, of all its runs so far; null before the first has run."""
    cost: CostView | None = None
    """What its runs used so far, beside the plan of all its runs; null before the first attempt."""
    started_at: float | None = None
    ended_at: float | None = None


class RolloutView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    note: str = ""
    """Text that people wrote; at first the spec's notes."""
    state: RolloutState
    reason: str | None = None
    """Why it stopped; null while it runs and when all has passed."""
    stage: str | None = None
    """Name of its current or last stage."""
    progress: dict[str, StageStatus]
    """Each stage's state, by name, in order."""
    run_id: str | None = None
    """Id of the last stage's run; null until it is submitted."""
    created_at: float
    ended_at: float | None = None
    archived: bool = False


class RolloutDetail(RolloutView):
    spec: dict[str, Any]
    stages: list[StageView]
    """All stages in order, including those not started yet."""
    cost: CostView | None = None
    """Of all stages together; null before the first attempt."""
    notes: list[str] = []
    """Notes: a stage that was left out, a gate that could not be judged."""
