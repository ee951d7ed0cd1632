"""Sweeps: their trials, points and verdict, and what deleting one frees."""

from __future__ import annotations

from typing import Any, Literal

from lehr.analysis.held_out import HeldOutVerdict
from lehr.schemas.base import View
from lehr.schemas.runs import RunView


class TrialView(View):
    number: int
    parameters: dict[str, Any]
    run: RunView
    value: float | None = None
    """The sweep metric's newest value."""
    step: int | None = None
    """The step of that value."""
    compared_value: float | None = None
    """The metric at the sweep's ``compared_at_step``: what the rank goes by."""
    rank: int | None = None
    """1 is best, among trials that have a finite value; ranked at equal step only."""
    best: bool = False
    held_out: str | None = None
    """Digest of the held-out set that ``compared_value`` was measured on; null where none was
    recorded, or the metric is not measured on one."""


class SweepView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    method: str
    metric: str
    goal: str
    parameters: list[str]
    """The dotted paths that vary."""
    counts: dict[str, int]
    """Runs by state."""
    trials_remaining: int = 0
    """Points that TPE has yet to choose."""
    stopped: str | None = None
    """Why it starts no further trial; None while it goes on."""
    state: Literal["waiting", "running", "finished"]
    best_run_id: str | None = None
    best_value: float | None = None
    """Its metric at ``compared_at_step``; its point's mean, where points have several seeds."""
    compared_at_step: int | None = None
    """Where the trials are compared: the furthest step that half of them have reached. Null where
    they are compared at equal tokens, since their batches differ."""
    compared_at_tokens: int | None = None
    """The same in tokens, whichever it is."""
    best_parameters: dict[str, Any] | None = None
    held_out: HeldOutVerdict | None = None
    """Whether the compared trials were evaluated on one held-out set. Where it is ``different``, no
    trial has a rank and none is best. Null where the metric is not measured on a held-out set."""
    held_out_note: str | None = None
    """The same in words, unless it is ``same``; the first of the notes, too."""
    created_at: float
    archived: bool = False


class PointView(View):
    """A point of a sweep over its seeds."""

    parameters: dict[str, Any]
    """Without the seed."""
    run_ids: list[str]
    mean: float | None = None
    """Of the compared values; null until all its seeds have one."""
    spread: float | None = None
    """Sample standard deviation between its seeds; null for a single one."""
    rank: int | None = None


class SweepDetail(SweepView):
    spec: dict[str, Any]
    trials: list[TrialView]
    points: list[PointView] = []
    """Where points run with several seeds: they are what is ranked, by their means. Each trial has
    its point's rank then."""
    noise: float | None = None
    """Standard deviation between the seeds of a point, pooled over the points."""
    noise_band: float | None = None
    """Means that are nearer to each other than this cannot be told apart (two standard errors)."""
    notes: list[str] = []
    """What to know of the result, in words: the best is at the edge of the grid, ..."""


class SweepDeletion(View):
    """What deleting a sweep's runs frees, or has freed. The record stays: spec, trials, moves."""

    sweep_id: str
    name: str
    deleted: bool
    runs: int
    bytes: int
    """In all: on the server's machine, and where checkpoints were copied to."""
    copies_bytes: int = 0
    """Copies of checkpoints elsewhere."""
    checkpoints: int
    notes: list[str] = []
    """What to know before, in words."""


class SweepFigure(View):
    parameter: str
    """On the x axis."""
    verdict: str
    """What the sweep says, in a sentence."""
    notes: list[str]
    """The sweep's notes, less what the verdict says already."""
    figure: dict[str, Any]
    """A Plotly figure: data and layout. Each trace's ``meta.role`` says what it is."""
