"""Check whether runs had the same batches and the same held-out set. Pure: digests in, verdict out.

A trainer records a digest of the tokens that an evaluation scores. Metrics under ``val/`` are
comparable only where the digests are equal: values of different sets have neither a difference nor
an order. A run without a digest counts as unknown: its values are compared, with a note.

The digest of a batch is equal for equal sequences, whatever the number of ranks and micro-batches.
So runs trained on the same data as long as their digests are equal, and a digest that occurs twice
is a batch that was trained on twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lehr.analysis.curve import Curve
from lehr.base.formats import listed
from lehr.schemas.base import SameData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_SHOWN = 8  # Characters of a digest that a sentence shows.


def is_measured(metric: str) -> bool:
    """Return whether a metric is measured on the held-out set, or on the items of a task."""
    return metric.startswith(("val/", "task/"))


@dataclass(frozen=True)
class HeldOut:
    """The held-out set of each run that was evaluated."""

    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Run ids by digest, both in the order of the runs."""
    unknown: tuple[str, ...] = ()  # Ids of runs that recorded no digest.

    @classmethod
    def of(cls, digests: Mapping[str, str | None]) -> HeldOut:
        """Group runs by digest; pass only runs that were evaluated."""
        sets: dict[str, tuple[str, ...]] = {}
        for run_id, digest in digests.items():
            if digest is not None:
                sets[digest] = (*sets.get(digest, ()), run_id)
        unknown = tuple(run_id for run_id, digest in digests.items() if digest is None)
        return cls(sets, unknown)

    @property
    def verdict(self) -> SameData:
        """Return the verdict. A single run is the same as itself, whatever its digest."""
        if len(self.sets) > 1:
            return "different"
        known = sum(len(run_ids) for run_ids in self.sets.values())
        return "unknown" if self.unknown and known + len(self.unknown) > 1 else "same"

    def differ(self, one: str, other: str) -> bool:
        """Return whether two runs are known to have been evaluated on different sets."""
        digests = [self._digest(run_id) for run_id in (one, other)]
        return None not in digests and digests[0] != digests[1]

    def note(self, metric: str, names: Mapping[str, str], what: str = "runs") -> str | None:
        """Return the verdict on ``metric`` as a sentence; None where the sets are the same.

        ``names`` of runs or trials (``what``) are by run id.
        """
        if self.verdict == "same":
            return None
        if self.verdict == "different":
            sets = "; ".join(
                f"{digest[:_SHOWN]}: {_listed(run_ids, names)}"
                for digest, run_ids in self.sets.items()
            )
            missing = ""
            if self.unknown:
                missing = f" The set is not known for {_listed(self.unknown, names)}."
            return (
                f"{metric} cannot be compared: these {what} were evaluated on {len(self.sets)} "
                f"different held-out sets ({sets}).{missing}"
            )
        who = _listed(self.unknown, names) if self.sets else f"these {what}"
        return (
            f"{metric} may not be comparable: {who} recorded no digest of the held-out set, so it "
            "is not known whether the sets are the same (a script records one by "
            "lehr_log.validation_data)."
        )

    def _digest(self, run_id: str) -> str | None:
        return next((digest for digest, ids in self.sets.items() if run_id in ids), None)


def _listed(run_ids: Collection[str], names: Mapping[str, str]) -> str:
    return listed([names.get(run_id, run_id) for run_id in run_ids])


DIGEST = "data/digest"
EPOCH = "data/epoch"
PASSES_SOURCE = "Muennighoff et al. 2023, arXiv:2305.16264"
_GOOD_PASSES = 4
_ROUNDING = 1e-6  # Epochs are computed in floating point.


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

    steps: int = 0  # Number of these steps.
    differs_from: int | None = None
    """The first of these steps at which they differ; None if they are equal."""

    @property
    def verdict(self) -> SameData:
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

    step: int  # The first step with such a batch.
    earlier: int  # The step that had the same batch before.
    count: int  # Number of logged steps with such a batch.


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

    ``agreements`` has the name of each other run, with how its batches compare.
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
