"""Staged rollouts: stages, gates and their evidence."""

from __future__ import annotations

from typing import Any, Literal

from lehr.schemas.base import View
from lehr.schemas.runs import RunView

RolloutState = Literal["running", "passed", "failed", "cancelled"]
StageStatus = Literal["waiting", "running", "passed", "failed", "cancelled", "skipped"]
"""waiting: its turn has not come; skipped: the rollout ended before it, so nothing was started."""
GateState = Literal["waiting", "passed", "failed", "not_judged", "skipped", "off"]
"""not_judged: what it goes by does not exist here, such as an MFU on a CPU; skipped: the rollout
ended before it was judged; off: switched off."""


class GateView(View):
    """What a stage must show, and what it showed."""

    name: Literal["first_loss", "falling_loss", "no_alerts", "memory", "mfu", "exact_resume"]
    title: str
    """E.g. "first loss"."""
    state: GateState
    expected: str
    """In words and figures; what is known before the stage has run."""
    seen: str | None = None
    """In words and figures; null while it waits."""
    value: float | None = None
    """What was seen, as a number in ``unit``, where it is one."""
    at_least: float | None = None
    at_most: float | None = None
    """Bounds of ``value``, both included; null where there is none."""
    unit: str | None = None
    """nats, GB or share; null where there is no number."""
    run_id: str | None = None
    """The run that showed it."""
    step: int | None = None
    """Where it was seen."""
    judged_at: float | None = None


class StageRunView(View):
    role: Literal["train", "whole", "resumed"]
    """train: what all gates but one go by. whole, resumed: the pair that exact_resume compares;
    without ``whole``, the resumed run is compared with ``train``."""
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
    """A preset's name, or ``llama of 2 layers`` and the like."""
    steps: int
    tokens_per_step: int
    judged_at_step: int
    """Its gates are judged here at the latest; in the last stage, while it goes on."""
    changes: dict[str, Any]
    """What its run has otherwise than the rollout's run, by dotted path."""
    gates: list[GateView]
    runs: list[StageRunView]
    """In the order in which they were started."""
    gpu_seconds: float | None = None
    """GPUs held times seconds, of all its runs so far; null before the first has run."""
    started_at: float | None = None
    ended_at: float | None = None


class RolloutView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    state: RolloutState
    reason: str | None = None
    """Why it stopped; null while it goes on and when all has passed."""
    stage: str | None = None
    """The name of the stage that it is at, or ended at."""
    progress: dict[str, StageStatus]
    """Each stage's state, by name, in their order."""
    run_id: str | None = None
    """Of the last stage: the run that was rolled out; null until it is submitted."""
    created_at: float
    ended_at: float | None = None
    archived: bool = False


class RolloutDetail(RolloutView):
    spec: dict[str, Any]
    stages: list[StageView]
    """All of them, in their order, those not started yet too."""
    notes: list[str] = []
    """What to know of it, in words: a stage that was left out, a gate that could not be judged."""
