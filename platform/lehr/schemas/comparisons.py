"""Comparison of runs."""

from __future__ import annotations

from typing import Any, Literal

from lehr.base.names import Goal
from lehr.schemas.base import Measured, SameData, View


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
    value: Measured | None = None
    delta: Measured | None = None
    """Difference from the baseline's (the first run)."""
    incomparable: str | None = None
    """Why it has no value, or no delta: it was cancelled before it had one, or was measured on
    another held-out set than the baseline's.
    """
    held_out: str | None = None
    """Digest of the held-out set of its last evaluation; null where none was recorded."""
    batches: SameData = "unknown"
    """Whether it trained on the baseline's batches, at the steps that both logged."""
    batches_differ_from: int | None = None
    """First logged step at which its batch is not the baseline's; null where there is none."""
    tokens_per_s: Measured | None = None
    """Median over the run."""
    step_time_s: Measured | None = None
    """Median over the run."""
    mfu: Measured | None = None
    """Median over the run, as a share of the GPUs' dense peak."""
    memory_bytes: Measured | None = None
    """Peak memory of one GPU; on a CPU, of the process."""


class GapView(View):
    """The difference between two groups of runs that differ only in their seed."""

    base_ids: list[str]
    """The baseline and the compared runs that differ from it only in their seed."""
    run_ids: list[str]
    """The other group."""
    verdict: Literal["differs", "within_noise", "unknown", "diverged"]
    """unknown: no group has two seeds, so the noise is not known; diverged: a value is not
    finite.
    """
    difference: float | None = None
    """Mean of the group minus that of the baseline's; null where a value is not finite."""
    half_width: float | None = None
    """Half of the difference's 95 % interval; null where the noise is unknown."""
    more_seeds: int | None = None
    """Further seeds that each group probably needs to decide; null: no number, or too many."""
    sentence: str


class RunGroupView(View):
    """Runs with the same values of what they are grouped by (``by``)."""

    name: str
    """Such as ``lr 3.0e-3`` or ``val/loss 1.8 to 2``."""
    run_ids: list[str]
    count: int
    """Runs with a value of the compared metric that can be compared with the baseline's."""
    mean: float | None = None
    """Of the compared metric, where all runs have it."""
    deviation: float | None = None
    """Sample standard deviation; null for a single value."""
    far: list[str] = []
    """Those left out of all three, as ``RunValuesView`` has it."""


class ClaimView(View):
    """The claim of a run against its baseline, as it was last judged."""

    run_id: str
    hypothesis: str
    baseline: str
    direction: Literal["lowers", "raises"]
    metric: str
    by: str
    number: int
    """Counts the claims of this person, of which the false discovery rate is, from 1."""
    verdict: Literal["keep", "reject", "undecided"] = "undecided"
    sentence: str = "not judged yet"
    pairs: int = 0
    """Pairs of seeds that were looked at."""
    gain: float | None = None
    """Mean difference of the pairs; above 0 where the claim holds."""
    evidence: float | None = None
    """E-value after these pairs."""
    needed: float | None = None
    """Evidence that keeps it."""
    next_pairs: int = 0
    """Pairs that adding seeds starts next."""
    sweeps: list[tuple[str, str]] = []
    """The sweeps whose runs are the pairs: of the run, and of the baseline."""


class ComparisonView(View):
    runs: list[str]
    metric: str
    goal: Goal | None = None
    """Whether lower or higher values of the metric are better: as a sweep of these runs declares,
    else by its name; null where neither shows it.
    """
    x_axis: Literal["step", "tokens", "time", "flops", "end"]
    common_x: float | None = None
    """The last x that every run with values reached: values are compared there. 1 for ``end``: each
    run's last value, once it has ended."""
    results: list[RunResultView]
    differences: list[DifferenceView]
    noise: float | None = None
    """Standard deviation between runs that differ only in their seed, if there are any."""
    noise_note: str = ""
    """Why it is not known, or the sweep that it is from, if not from these runs alone."""
    gaps: list[GapView] = []
    """The baseline's group of seeds against each other group; none between held-out sets."""
    groups: list[RunGroupView] = []
    """The groups that ``by`` requests, in the order of their first runs."""
    means: list[str] = []
    """The mean of each group with several seeds, as a sentence."""
    held_out: SameData = "unknown"
    """Whether the runs that were evaluated used one held-out set. If ``different``, no metric
    under ``val/`` is comparable between the sets. ``unknown``: some recorded no digest.
    """
    held_out_note: str | None = None
    """The same as a sentence, where it matters for ``metric``; also the first of the notes."""
    batches: SameData = "unknown"
    """Whether all runs trained on the batches of the baseline, by the digests that trainers log
    (``data/digest``). ``unknown``: some logged none at the baseline's steps.
    """
    batches_note: str = ""
    """The same as a sentence, with the step from which a run had other batches."""
    notes: list[str]
    """Limits of the comparison."""
