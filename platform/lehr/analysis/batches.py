"""Compare the batches of steps by the digests that trainers log. Pure.

The digest of a batch is equal for equal sequences, whatever the number of ranks and micro-batches.
So runs trained on the same data as long as their digests are equal, and a digest that occurs twice
is a batch that was trained on twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.analysis.curve import Curve
from lehr.base.formats import listed
from lehr.schemas.comparisons import BatchesVerdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGEST = "data/digest"
EPOCH = "data/epoch"
PASSES_SOURCE = "Muennighoff et al. 2023, arXiv:2305.16264"
_GOOD_PASSES = 4
_ROUNDING = 1e-6
"""Epochs are computed in floating point."""


def passes_note(passes: float | None) -> str | None:
    """Return what to know of a training that passes over its corpus so often; None if nothing."""
    if passes is None or not passes > _GOOD_PASSES:
        return None
    return (
        f"{passes:.3g} passes over the corpus; up to {_GOOD_PASSES} are nearly as good as new data "
        f"({PASSES_SOURCE})."
    )


@dataclass(frozen=True)
class Agreement:
    """Whether two series of digests are equal at the steps that both have."""

    steps: int = 0
    """Number of these steps."""
    differs_from: int | None = None
    """The first of these steps at which they differ; None if they are equal."""

    @property
    def verdict(self) -> BatchesVerdict:
        if self.differs_from is not None:
            return "different"
        return "same" if self.steps else "unknown"


def agreement(one: Curve, other: Curve) -> Agreement:
    """Compare the digests of two runs, or of two attempts."""
    import numpy as np

    steps, here, there = np.intersect1d(
        np.asarray(one.steps, np.int64), np.asarray(other.steps, np.int64), return_indices=True
    )
    ours, theirs = _digests(one)[here], _digests(other)[there]
    differ = np.flatnonzero((ours != theirs) & np.isfinite(ours) & np.isfinite(theirs))
    return Agreement(len(steps), int(steps[differ[0]]) if differ.size else None)


@dataclass(frozen=True)
class RepeatedBatches:
    """Batches that were trained on before, within one pass over the corpus."""

    step: int
    """The first step with such a batch."""
    earlier: int
    """The step that had the same batch before."""
    count: int
    """Number of logged steps with such a batch."""


def repetition(digests: Curve, epochs: Curve, *, lasts: int) -> RepeatedBatches | None:
    """Find batches that occur again; the sign must last for some consecutive logged steps.

    A batch that occurs again after a new pass over the corpus began is no sign: a small corpus may
    fill every batch with the same sequences.
    """
    import numpy as np

    steps, values = np.asarray(digests.steps, np.int64), _digests(digests)
    if len(steps) <= lasts or not len(epochs):
        return None
    # Sorted by digest, then by step: a batch that occurs again follows its last occurrence.
    order = np.lexsort((steps, values))
    again = values[order][1:] == values[order][:-1]
    previous = np.full(len(steps), -1)
    previous[order[1:][again]] = order[:-1][again]
    passed = np.interp(steps, np.asarray(epochs.steps), np.asarray(epochs.values, float))
    # Not passed / steps: a fork may have begun at any pass.
    of_a_step = np.gradient(passed, steps)
    began = np.floor((passed - of_a_step)[previous] + _ROUNDING)
    repeated = (previous >= 0) & (passed <= began + 1 + _ROUNDING)
    run = 0
    for at in np.flatnonzero(repeated):
        run = run + 1 if at and repeated[at - 1] else 1
        if run == lasts:
            first = at - lasts + 1
            return RepeatedBatches(
                int(steps[first]), int(steps[previous[first]]), int(repeated[first:].sum())
            )
    return None


def batches_note(agreements: Sequence[tuple[str, Agreement]], baseline: str) -> str:
    """Return as a sentence which runs trained on the batches of the baseline.

    Args:
        agreements: the name of each other run, and how its batches compare with the baseline's.
        baseline: its name.
    """
    same = [(name, one.steps) for name, one in agreements if one.verdict == "same"]
    unknown = [name for name, one in agreements if one.verdict == "unknown"]
    differ = [
        f"{name} (from step {one.differs_from:,} on)"
        for name, one in agreements
        if one.differs_from is not None
    ]
    parts = []
    if same:
        fewest = min(steps for _, steps in same)
        steps = f"all {fewest:,} compared steps" if fewest > 1 else "the one compared step"
        parts.append(f"the same as {baseline} at {steps}: {listed([name for name, _ in same])}")
    if differ:
        parts.append(f"other batches than {baseline}: {listed(differ)}")
    if unknown:
        parts.append(f"not known, for lack of digests at the same steps: {listed(unknown)}")
    return "; ".join(parts)


def _digests(curve: Curve) -> NDArray[np.float64]:
    import numpy as np

    return np.asarray(curve.values, np.float64)
