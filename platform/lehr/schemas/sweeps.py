"""Sweeps: trials, points, result and transfer to a larger training, and what deleting one frees."""

from __future__ import annotations

from typing import Any, Literal

from lehr.schemas.base import Measured, SameData, View
from lehr.schemas.runs import CostView, RunView, UsedView


class TrialView(View):
    number: int
    parameters: dict[str, Any]
    run: RunView
    value: Measured | None = None
    """The sweep metric's newest value."""
    step: int | None = None
    """The step of that value."""
    compared_value: Measured | None = None
    """The metric at the sweep's ``compared_at_step``, which decides the rank."""
    rank: int | None = None
    """1 is best, among trials that have a finite value; ranked at equal step only."""
    best: bool = False
    held_out: str | None = None
    """Digest of the held-out set on which ``compared_value`` was measured; null where none was
    recorded, or the metric is not measured on one.
    """

    @property
    def place(self) -> tuple[bool, int, int]:
        """What sorts trials, the best first; those without a rank come last, in their order."""
        return self.rank is None, self.rank or 0, self.number


class StandingView(View):
    """How a trial stands among the others, without its run."""

    number: int
    value: Measured | None = None
    step: int | None = None
    compared_value: Measured | None = None
    rank: int | None = None
    best: bool = False


class SweepView(View):
    id: str
    name: str
    project: str
    tags: list[str] = []
    note: str = ""
    """Text that people wrote; at first the spec's notes."""
    method: str
    metric: str
    goal: str
    parameters: list[str]
    """The swept paths."""
    counts: dict[str, int]
    """Number of runs by state."""
    trials_remaining: int = 0
    """Points that TPE has yet to choose."""
    stopped: str | None = None
    """Why it starts no more trials; None otherwise."""
    state: Literal["waiting", "running", "finished"]
    best_run_id: str | None = None
    best_value: Measured | None = None
    """Its metric at ``compared_at_step``; its point's mean, where points have several seeds."""
    compared_at_step: int | None = None
    """The step at which trials are compared: the last that half of them have reached. Null where
    they are compared at equal tokens, since their batches differ.
    """
    compared_at_tokens: int | None = None
    """The same in tokens, in both cases."""
    best_parameters: dict[str, Any] | None = None
    held_out: SameData | None = None
    """Whether the compared trials used one held-out set. If ``different``, no trial has a rank
    and none is best. Null where the metric is not measured on a held-out set.
    """
    held_out_note: str | None = None
    """The same as a sentence, unless it is ``same`` or no trial recorded a set; also the first of
    the notes.
    """
    used: UsedView | None = None
    """What the attempts of all its runs have used, archived ones too; null before the first."""
    created_at: float
    archived: bool = False


class PointView(View):
    """A point of a sweep over its seeds."""

    parameters: dict[str, Any]
    """Without the seed."""
    run_ids: list[str]
    mean: float | None = None
    """Mean of the compared values; null until all its seeds have one."""
    spread: float | None = None
    """Sample standard deviation between its seeds; null for a single one."""
    rank: int | None = None


class NoiseView(View):
    """The noise between seeds."""

    deviation: float
    """Standard deviation between seeds, pooled over the groups."""
    freedom: int
    """Its degrees of freedom: seeds less groups."""
    groups: int
    """Number of groups with several seeds."""


class NextTrials(View):
    """Trials to add next, to know the best learning rate better: input of `extend` or `seeds`."""

    parameters: dict[str, list[Any]] | None = None
    """For a grid: values to add."""
    points: list[dict[str, Any]] | None = None
    """For a list: points to add."""
    repeat: list[str] = []
    """For a sweep without seeds of its own: runs to repeat with equally many new seeds."""
    trials: int
    """Number of runs that this adds, with all seeds."""
    command: str
    """The same on the command line."""


class SweepDetail(SweepView):
    spec: dict[str, Any]
    trials: list[TrialView]
    """A page of its trials, in the sweep's order."""
    next_cursor: str | None = None
    """Pass as ``cursor`` for the next page of trials; null on the last."""
    trials_total: int = 0
    """Number of trials on all pages."""
    repetitions: list[TrialView] = []
    """Runs of other sweeps that repeat a trial with another seed (``lehr seeds``), on each page.
    Each has its trial's number, and its parameters with the seed, and counts for its point once it
    has a value to compare.
    """
    standings: list[StandingView] = []
    """How all trials stand, where the request names runs: those of other runs than the requested
    may have another rank than before.
    """
    best_trials: list[TrialView] = []
    """The best ten by rank, on whatever page they are; empty before any has a rank."""
    steps_made: int = 0
    """Steps of all its runs so far."""
    steps_done: int = 0
    """The same, where each ended run counts as complete."""
    steps_total: int = 0
    """Steps that all its runs were submitted for; 0 if those of a program are not known."""
    started_at: float | None = None
    """When its first run started."""
    ended_at: float | None = None
    """When its last run so far ended."""
    points: list[PointView] = []
    """Set where points run with several seeds: points are ranked by their means, and each trial
    has its point's rank.
    """
    noise: float | None = None
    """Standard deviation between the seeds of a point, pooled over the points."""
    noise_band: float | None = None
    """Means that differ by less than this cannot be distinguished (half of
    the 95 % interval of their difference)."""
    noise_elsewhere: NoiseView | None = None
    """Between seeds of the same training in other sweeps of the project, where a finished one has
    no seeds of its own.
    """
    notes: list[str] = []
    """Notes on the result: the best is at the edge of the values tried, ..."""
    warnings: list[str] = []
    """What may go wrong on this cluster, each with a way out. Empty once all runs have ended."""
    next_trials: NextTrials | None = None
    """Trials to add next, once it has finished; null if the verdict proposes none, or if the
    sweep's method chooses its points itself.
    """
    cost: CostView | None = None
    """Of all its runs; null before the first attempt."""

    @property
    def seeded(self) -> list[TrialView]:
        """Its trials that were read, and their repetitions."""
        return [*self.trials, *self.repetitions]


class AuditView(View):
    """What the pruning rule ``forecast`` would have done in finished sweeps without pruning."""

    trainings: int
    stopped: int
    stopped_best: int
    """How many of the stopped were the best of their sweep."""
    gpu_hours: float
    saved_gpu_hours: float
    text: str


class SweepDeletion(View):
    """What deleting a sweep's runs frees, or has freed. The record stays: spec, trials,
    transitions.
    """

    sweep_id: str
    name: str
    deleted: bool
    runs: int
    bytes: int
    """Total: on the server's machine, and copies of checkpoints."""
    copies_bytes: int = 0
    """Copies of checkpoints in storage."""
    checkpoints: int
    notes: list[str] = []
    """What to know before deleting."""


class SweepFigure(View):
    parameter: str
    """On the x axis."""
    verdict: str
    """The result of the sweep, in a sentence."""
    notes: list[str]
    """The sweep's notes without those that repeat the verdict."""
    svg: str
    """The drawing, as an ``svg`` element without scripts and styles. Each kind of points has a
    class: points, pending, best, diverged, stopped, fit.
    """
    importance: dict[str, float] = {}
    """Each varied parameter's share in what decides the metric (Optuna's PED-ANOVA), the largest
    first; empty for fewer than ten compared trials, fewer than five for each parameter, or a single
    parameter.
    """


class ChangeView(View):
    """What differs between the sweep's trials and the target."""

    quantity: str
    """width, depth, batch (tokens of a step) or tokens (of the whole training)."""
    source: float
    target: float
    ratio: float
    """target / source."""
    factor: float | None = None
    """Of the rate, by the chosen rule; null if the rule does not use this quantity."""
    formula: str | None = None
    source_of_rule: str | None = None
    """The publication."""
    doubt: str | None = None


class RuleView(View):
    """One rule's answer."""

    name: str
    title: str
    rate: float
    chosen: bool
    formula: str
    """Of the target's rate, from the sweep's rate or by itself."""
    source: str
    domain: str
    """Where its publication, or measurement, supports it."""
    outside: str | None = None
    """Why this transfer is outside of it; null inside."""


class TransferView(View):
    sweep_id: str
    sweep: str
    target: str
    """Name of the spec that the rate is for."""
    rule: str
    rate: float
    """The recommended rate of the target."""
    likely: tuple[float, float] | None = None
    """The interval that should hold the target's best rate with 68 %: the sweep's interval and the
    rule's own doubt. Null if the sweep's trials bracket no minimum."""
    sure: tuple[float, float] | None = None
    """The same with 95 %."""
    doubt: float
    """Factor by which the rule alone may be wrong (one standard deviation)."""
    from_rate: float
    """The sweep's own best rate."""
    from_likely: tuple[float, float] | None = None
    from_sure: tuple[float, float] | None = None
    changes: list[ChangeView]
    rules: list[RuleView]
    warnings: list[str]
    yaml: str
    """The target's spec with the rate, and the reasons as comments: for ``lehr submit`` or ``lehr
    rollout``."""
